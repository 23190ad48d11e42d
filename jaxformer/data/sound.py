"""Reads sound files as waveforms: one channel, at the sampling rate of a model."""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checks import POSITIVE, at_least, check_arguments
from jaxformer.data.files.record import EmbeddedFile
from jaxformer.errors import DataError, first_line
from jaxformer.extras import optional_module
from jaxformer.io.files import ordinary_file
from jaxformer.io.notices import warn_once

_BLOCK = 1 << 20
"""Frames that are decoded at once."""


@dataclass(frozen=True)
class SoundStream:
    """A sound that is read block by block, so that memory suffices for hours."""

    name: str
    """Its name in messages: a file, or "waveform"."""
    length: int
    """The number of samples; for a file, from its header."""
    blocks: Callable[[], Iterator[np.ndarray]]
    """Reads the sound from its start: yields float32 `[S]`."""

    @classmethod
    def of_file(cls, file: str | Path, sampling_rate: int) -> "SoundStream":
        """Returns the sound that `read_sound` reads; the blocks raise DataError about damage."""
        length = sound_length(file, sampling_rate)

        def blocks() -> Iterator[np.ndarray]:
            with _opened(file) as sound:
                yield from _resampled(_blocks(sound, file), sound.samplerate, sampling_rate)

        return cls(str(file), length, blocks)


class SampleReader:
    """Reads stretches of a sound, in the order of their starts."""

    def __init__(self, blocks: Iterable[np.ndarray]):
        self._blocks = iter(blocks)
        self._held = np.zeros(0, np.float32)
        self._start = 0

    def read(self, start: int, stop: int) -> np.ndarray:
        """Returns the samples from `start` to `stop`, or to the end of the sound."""
        parts, end = [self._held], self._start + len(self._held)
        while end < stop and (block := next(self._blocks, None)) is not None:
            # Whole blocks before the start are dropped.
            parts = [*parts, block] if end > start else [block]
            self._start = self._start if end > start else end
            end += len(block)
        held = np.concatenate(parts)
        gone = min(max(start - self._start, 0), len(held))
        self._held, self._start = held[gone:], self._start + gone
        return self._held[: max(stop - start, 0)]


def read_sound(
    file: str | Path | EmbeddedFile, sampling_rate: int, *, max_seconds: float | None = None
) -> np.ndarray:
    """Returns the waveform of a sound file: the mean of its channels, resampled.

    Args:
        file: .wav, .flac, .ogg, .mp3, or another format that libsndfile reads.
        sampling_rate: Samples per second of the result; a file with another rate is resampled by
            soxr, with one warning.
        max_seconds: A longer file is refused before it is decoded.

    Returns:
        float32 `[S]`, between -1 and 1 for files of integers.

    Raises:
        DataError: Names the file that is missing, empty, too long, damaged or not sound.
    """
    check_arguments(sampling_rate=(sampling_rate, at_least(1)))
    if max_seconds is not None:
        check_arguments(max_seconds=(max_seconds, POSITIVE))
    with _opened(file) as sound:
        if max_seconds is not None and sound.frames > max_seconds * sound.samplerate:
            raise DataError(
                f"{file}: is {sound.frames / sound.samplerate:,.1f} seconds long, and at most "
                f"{max_seconds:,.1f} are allowed: cut it into clips"
            )
        blocks = list(_resampled(_blocks(sound, file), sound.samplerate, sampling_rate))
    waveform = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if not len(waveform):
        raise DataError(f"{file}: has no samples: remove it, or record it again")
    return waveform


def resampled(waveform: np.ndarray, old: int, new: int) -> np.ndarray:
    """Returns a waveform at another sampling rate, with one warning about resampling."""
    return np.concatenate(list(_resampled([waveform], old, new)))


def sound_length(file: str | Path | EmbeddedFile, sampling_rate: int) -> int:
    """Returns how many samples a sound file has at a sampling rate, from its header."""
    with _opened(file) as sound:
        if not sound.frames:
            raise DataError(f"{file}: has no samples: remove it, or record it again")
        return -(-sound.frames * sampling_rate // sound.samplerate)


def _opened(file: str | Path | EmbeddedFile) -> Any:
    """Opens a file by libsndfile."""
    soundfile = optional_module("soundfile", "Reading sound files")
    embedded = isinstance(file, EmbeddedFile)
    source = io.BytesIO(file.content) if embedded else str(ordinary_file(file))
    size = len(file.content) if embedded else Path(source).stat().st_size
    if not size:
        raise DataError(f"{file}: is empty: remove it, or record it again")
    try:
        return soundfile.SoundFile(source)
    except (RuntimeError, TypeError) as error:  # a TypeError for headerless .raw files
        cause = first_line(error).rpartition(": ")[2]
        raise DataError(
            f"{file}: is not a sound file that can be decoded ({cause}); convert it to .wav or "
            ".flac, for example with ffmpeg"
        ) from error


def _blocks(sound: Any, file: object) -> Any:
    """Yields the mean of the channels, float32 `[S]`, block by block."""
    done = 0
    while True:
        try:
            block = sound.read(_BLOCK, dtype="float32", always_2d=True)
        except RuntimeError as error:
            raise DataError(
                f"{file}: is damaged after {done / sound.samplerate:,.1f} seconds "
                f"({first_line(error)}); copy it again, or cut it there"
            ) from error
        if not len(block):
            return
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            second = (done + int(np.argmin(finite))) / sound.samplerate
            raise DataError(
                f"{file}: holds NaN or infinity at {second:,.3f} seconds: export it again with "
                "finite samples"
            )
        done += len(block)
        yield block.mean(axis=1)


def _resampled(blocks: Any, old: int, new: int) -> Any:
    """Yields blocks at another sampling rate."""
    if old == new:
        yield from blocks
        return
    soxr = optional_module("soxr", "Resampling sound files")
    warn_once(f"sound files of {old:,} Hz are resampled to {new:,} Hz")
    stream = soxr.ResampleStream(old, new, 1, dtype="float32")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
