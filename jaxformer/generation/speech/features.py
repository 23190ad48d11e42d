"""How a model reads a waveform, from its files."""

from jaxformer.data.tasks.sounds.features import FilterBanks, LogMel, WaveformFeatures, form_of
from jaxformer.pretrained.model import Pretrained


def log_mel_of(pretrained: Pretrained) -> LogMel:
    """Returns the settings of a Whisper; DataError if they do not fit the model."""
    return form_of(pretrained.config.parts["encoder"], pretrained.folder)


def filter_banks_of(pretrained: Pretrained) -> FilterBanks:
    """Returns the settings of an Audio Spectrogram Transformer; DataError if they are invalid."""
    return form_of(pretrained.config, pretrained.folder)


def waveform_features_of(pretrained: Pretrained) -> WaveformFeatures:
    """Returns the settings of a wav2vec 2.0 or HuBERT; DataError if they are invalid."""
    return form_of(pretrained.config, pretrained.folder)
