"""Speech: spectrograms, normalised waveforms, and masks for augmentation."""

from jaxformer.functional.audio.augmentation import span_mask, spec_augment
from jaxformer.functional.audio.spectrograms import (
    compressed,
    kaldi_filter_banks,
    log_mel,
    log_mel_power,
    mel_filters,
    power_spectrogram,
)
from jaxformer.functional.audio.waveforms import frames, normalize_waveform

__all__ = [
    "compressed",
    "frames",
    "kaldi_filter_banks",
    "log_mel",
    "log_mel_power",
    "mel_filters",
    "normalize_waveform",
    "power_spectrogram",
    "span_mask",
    "spec_augment",
]
