"""How a model reads a waveform as a spectrogram."""

from jaxformer.data.tasks.sounds.features import FilterBanks, LogMel, preprocessor_settings
from jaxformer.pretrained.model import Pretrained


def log_mel_of(pretrained: Pretrained) -> LogMel:
    """Returns the settings of a Whisper; DataError if they do not fit the model."""
    encoder = pretrained.config.parts["encoder"]
    name, values = preprocessor_settings(pretrained.folder)
    return LogMel.read(name, values, encoder.num_mel_bins, encoder.num_frames)


def filter_banks_of(pretrained: Pretrained) -> FilterBanks:
    """Returns the settings of an Audio Spectrogram Transformer; DataError if they are invalid."""
    name, values = preprocessor_settings(pretrained.folder)
    return FilterBanks.read(name, values, *pretrained.config.image_size)
