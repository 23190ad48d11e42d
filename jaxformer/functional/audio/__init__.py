"""Speech: spectrograms, normalised waveforms, and masks for augmentation."""

from jaxformer.functional.audio.augmentation import span_mask, spec_augment
from jaxformer.functional.audio.spectrograms import (
    kaldi_filter_banks,
    log_mel,
    mel_filters,
    power_spectrogram,
)
from jaxformer.functional.audio.waveforms import frames, normalize_waveform

__all__ = [
    "frames",
    "kaldi_filter_banks",
    "log_mel",
    "mel_filters",
    "normalize_waveform",
    "power_spectrogram",
    "span_mask",
    "spec_augment",
]
