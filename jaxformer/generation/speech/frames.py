"""The scores of the frames of a sound, from a model with a CTC head."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxformer.data.sound import SoundStream
from jaxformer.data.tasks.sounds.features import WaveformFeatures
from jaxformer.errors import DataError
from jaxformer.generation.inputs import bucket
from jaxformer.generation.speech.chunks import Chunking, Progress, batches, chunks_of
from jaxformer.models import CTC, AbstractModel, WaveformConfig
from jaxformer.pretrained.model import Pretrained

_PADDED = 2.5
"""Chunks are padded to a multiple of these seconds, so that few programs are compiled."""


def writes_labels(pretrained: Pretrained) -> bool:
    """Whether a model has a CTC head on the frames of a waveform."""
    heads = pretrained.config.heads
    waveform = isinstance(pretrained.config, WaveformConfig)
    return waveform and any(isinstance(head, CTC) for head in heads)


def frame_log_probs(
    pretrained: Pretrained, waveform: np.ndarray, features: WaveformFeatures
) -> np.ndarray:
    """Returns the log-probabilities `[T, V]` of the frames of a sound `[S]`, read at once."""
    _check_length(pretrained, "waveform", len(waveform))
    whole = Chunking(round(_PADDED * features.sampling_rate), 0, 1)
    return _log_probs(pretrained, [waveform], features, whole)[0]


def chunk_log_probs(
    pretrained: Pretrained,
    stream: SoundStream,
    features: WaveformFeatures,
    cut: Chunking,
    progress: Progress | None = None,
) -> Iterator[np.ndarray]:
    """Yields the log-probabilities `[T, V]` of the frames of a sound, chunk by chunk.

    The frames at the ends of a chunk are left to its neighbours. Each chunk is normalised
    separately, as in transformers.
    """
    step, rate = pretrained.config.samples_per_frame, features.sampling_rate
    for batch in batches(chunks_of(stream, cut), cut.batch_size):
        if not batch[0].start:
            _check_length(pretrained, stream.name, len(batch[0].samples))
        samples = [chunk.samples for chunk in batch]
        found = _log_probs(pretrained, samples, features, cut)
        for chunk, scores in zip(batch, found, strict=True):
            size = len(chunk.samples)
            count = round(size / step)
            left, right = (round(end / size * count) for end in (chunk.left, chunk.right))
            yield scores[left : count - right]
        if progress is not None:
            done = chunk.start + size - chunk.right
            progress(done / rate, max(done, stream.length) / rate)


def _check_length(pretrained: Pretrained, name: str, samples: int) -> None:
    least = pretrained.config.features.min_samples
    if samples < least:
        raise DataError(
            f"{name} has {samples} samples: must have at least {least}, those of a frame"
        )


def _log_probs(
    pretrained: Pretrained, waveforms: list[np.ndarray], features: WaveformFeatures, cut: Chunking
) -> list[np.ndarray]:
    """Returns the log-probabilities of each chunk of a batch."""
    config, least = pretrained.config, pretrained.config.features.min_samples
    multiple = min(round(_PADDED * features.sampling_rate), cut.size)
    lengths = [len(waveform) for waveform in waveforms]
    width = -(-max(*lengths, least) // multiple) * multiple
    batch = np.zeros((min(bucket(len(lengths), 1), cut.batch_size), width), np.float32)
    for row, waveform in zip(batch, waveforms, strict=False):
        row[: len(waveform)] = features(waveform)
    # Rows without a sound have one frame.
    counts = np.full(len(batch), least, np.int32)
    counts[: len(lengths)] = np.maximum(lengths, least)
    arrays = {"waveforms": batch, "num_samples": counts}
    scores = np.asarray(_scored(pretrained.abstract_model, pretrained.parameters, arrays))
    frames = [config.num_frames(n) if n >= least else 0 for n in lengths]
    return [row[:count] for row, count in zip(scores, frames, strict=False)]


@partial(jax.jit, static_argnums=0)
def _scored(abstract_model: AbstractModel, parameters: Any, batch: Any) -> jax.Array:
    return jax.nn.log_softmax(abstract_model.module(parameters).scores(batch)["ctc"])
