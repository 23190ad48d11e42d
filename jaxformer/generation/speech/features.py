"""How a Whisper reads a waveform."""

from jaxformer.data.tasks.sounds.features import LogMel, preprocessor_settings
from jaxformer.pretrained.model import Pretrained


def log_mel_of(pretrained: Pretrained) -> LogMel:
    """Returns the settings of a checkpoint; DataError if they do not fit the model."""
    encoder = pretrained.config.parts["encoder"]
    name, values = preprocessor_settings(pretrained.folder)
    return LogMel.read(name, values, encoder.num_mel_bins, encoder.num_frames)
