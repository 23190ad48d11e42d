"""Speech models on a sound: spectrogram, attention over time, and alignments."""
