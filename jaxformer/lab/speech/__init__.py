"""What a speech model hears in a sound: spectrogram, attention over time, and alignments."""
