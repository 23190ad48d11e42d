"""The scores of the frames of a sound, from a model with a CTC head."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxformer.data.tasks.sounds.features import WaveformFeatures
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import CTC, AbstractModel, WaveformConfig
from jaxformer.pretrained.model import Pretrained

WINDOW, OVERLAP = 30.0, 5.0
"""The seconds of a window of a long sound, and those that it shares with each neighbour."""
_PADDED = 2.5
"""Sounds are padded to a multiple of these seconds, so that few programs are compiled."""


def writes_labels(pretrained: Pretrained) -> bool:
    """Whether a model has a CTC head on the frames of a waveform."""
    heads = pretrained.config.heads
    waveform = isinstance(pretrained.config, WaveformConfig)
    return waveform and any(isinstance(head, CTC) for head in heads)


def frame_log_probs(
    pretrained: Pretrained,
    waveform: np.ndarray,
    features: WaveformFeatures,
    progress: Callable[[float, float], None] | None = None,
) -> np.ndarray:
    """Returns the log-probabilities of the classes of each frame of a sound.

    A sound of more than 30 seconds is read in windows, whose first and last frames are left to
    their neighbours.

    Args:
        pretrained: A model with a CTC head.
        waveform: float32 `[S]` at the sampling rate of the model.
        features: How the model reads it.
        progress: Is called with the seconds that are done, and all seconds.

    Returns:
        float32 `[T, V]`.

    Raises:
        DataError: The sound is shorter than a frame.
    """
    config, rate = pretrained.config, features.sampling_rate
    convolutions = config.features
    if len(waveform) < convolutions.min_samples:
        raise DataError(
            f"waveform has {len(waveform)} samples: must have at least "
            f"{convolutions.min_samples}, those of a frame"
        )
    step = config.samples_per_frame
    waveform, total = features(waveform), config.num_frames(len(waveform))
    window, overlap = (round(seconds * rate / step) for seconds in (WINDOW, OVERLAP))
    if total <= window:
        window, overlap = total, 0
    parts, start = [], 0
    while start < total:
        first = max(start - overlap, 0)
        last = min(first + window, total)
        # From the first sample of the first frame to the last of the last.
        samples = waveform[first * step : (last - 1) * step + convolutions.min_samples]
        found = _log_probs(pretrained, samples, round(_PADDED * rate))
        stop = total if last == total else last - overlap
        parts.append(found[start - first : stop - first])
        start = stop
        if progress is not None:
            progress(stop * step / rate, len(waveform) / rate)
    return np.concatenate(parts)


def _log_probs(pretrained: Pretrained, samples: np.ndarray, multiple: int) -> np.ndarray:
    count = len(samples)
    padded = np.pad(samples, (0, -count % multiple))[None]
    batch = {"waveforms": padded, "num_samples": np.array([count], np.int32)}
    scores = _scored(pretrained.abstract_model, pretrained.parameters, batch)
    return np.asarray(scores)[0, : pretrained.config.num_frames(count)]


@partial(jax.jit, static_argnums=0)
def _scored(abstract_model: AbstractModel, parameters: Any, batch: Any) -> jax.Array:
    return jax.nn.log_softmax(abstract_model.module(parameters).scores(batch)["ctc"])


def check_writes_labels(pretrained: Pretrained) -> None:
    """Raises ConfigError unless a model has a CTC head."""
    if not writes_labels(pretrained):
        raise ConfigError(
            f"transcribe: {pretrained.folder} has the heads "
            f"{', '.join(head.name for head in pretrained.config.heads) or 'none'}: must have a "
            "CTC head, such as Wav2Vec2ForCTC"
        )
