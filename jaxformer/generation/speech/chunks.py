"""Chunks of a long sound that overlap, which a model reads in batches."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, at_least, check_argument, check_arguments
from jaxformer.data.sound import SampleReader, SoundStream

Progress = Callable[[float, float], None]
"""Called with the seconds transcribed so far, and those of the whole sound."""
Timing = Literal["none", "segments", "words"]
"""The times of a transcript."""
_T = TypeVar("_T")


class Chunking(NamedTuple):
    """How a sound is cut."""

    size: int
    """The samples of a chunk."""
    stride: int
    """The samples at each end that its neighbour reads too."""
    batch_size: int
    """The chunks that are read at once."""


class Chunk(NamedTuple):
    """A part of a sound."""

    samples: np.ndarray
    """float32 `[S]`."""
    start: int
    """The samples of the sound before it."""
    left: int
    """Its first samples, which the chunk before it reads too."""
    right: int
    """Its last samples, which the chunk after it reads too."""


def chunking(
    sampling_rate: int,
    multiple: int,
    longest: float,
    batch_size: int | None,
    chunk_length_s: float | None,
    stride_length_s: float | None,
) -> Chunking:
    """Returns how a sound is cut, as by the pipelines of transformers.

    Sizes are rounded to a multiple of some samples. The model can read chunks of at most `longest`
    seconds. The other arguments are those of `transcribe`, and default to 1, to 30 or `longest`,
    and to a sixth of the chunk.
    """
    batch_size = 1 if batch_size is None else batch_size
    check_arguments(batch_size=(batch_size, at_least(1)))
    length = min(30.0, longest) if chunk_length_s is None else chunk_length_s
    fits = POSITIVE.allows(length) and multiple / sampling_rate <= length <= longest
    limit = "" if longest == float("inf") else f", at most {longest:g}, which the model reads"
    check_argument("chunk_length_s", length, fits, f"the positive seconds of a chunk{limit}")
    stride = length / 6 if stride_length_s is None else stride_length_s

    def samples(seconds: float) -> int:
        return round(seconds * sampling_rate / multiple) * multiple

    fits = NOT_NEGATIVE.allows(stride) and 2 * samples(stride) < samples(length)
    expected = f"seconds of at least 0, and less than half of the chunk's {length:g}"
    check_argument("stride_length_s", stride, fits, expected)
    return Chunking(samples(length), samples(stride), batch_size)


def chunks_of(stream: SoundStream, cut: Chunking) -> Iterator[Chunk]:
    """Yields the chunks of a sound, the last of which ends where the sound does."""
    reader, start, last = SampleReader(stream.blocks()), 0, False
    while not last:
        samples = reader.read(start, start + cut.size + 1)
        last = len(samples) <= cut.size
        left, right = cut.stride if start else 0, 0 if last else cut.stride
        yield Chunk(samples[: cut.size], start, left, right)
        start += cut.size - 2 * cut.stride


def batches(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yields lists of `size` items; the last may have fewer."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch
