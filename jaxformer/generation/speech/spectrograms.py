"""The spectrograms that Whisper reads: of one window, or of a long sound as it is read."""

from collections.abc import Iterable, Iterator

import numpy as np

from jaxformer.data.sound import SampleReader, SoundStream
from jaxformer.data.tasks.sounds.features import LogMel
from jaxformer.functional.audio import compressed


class WindowSpectrogram:
    """The spectrogram of a sound of at most one window, which is padded with silence.

    Attributes:
        frames: The frames of the sound.
        total: The frames to transcribe; by default those of the sound.
    """

    def __init__(self, features: LogMel, waveform: np.ndarray, total: int | None = None):
        self.frames = -(-len(waveform) // features.hop)
        self.total = self.frames if total is None else total
        self._values = features.spectrogram(waveform)

    def window(self, position: int) -> np.ndarray:
        """Returns the frames of a window from this one on, float32 `[T, M]`, padded with zeros."""
        rest = self._values[position:]
        return np.pad(rest, ((0, len(self._values) - len(rest)), (0, 0)))


class LongSpectrogram:
    """The spectrogram of a longer sound, whose windows are computed as they are read.

    The sound is read twice: for its loudest frequency, which the whole spectrogram depends on, and
    for the windows, each of which starts no earlier than the one before. Windows are those of the
    spectrogram of the whole sound in transformers, followed by zeros.
    """

    def __init__(self, features: LogMel, stream: SoundStream):
        self._features = features
        self._loudest, self.num_samples, position, ends = np.float32(-np.inf), 0, 0, False

        def counted() -> Iterator[np.ndarray]:
            for block in stream.blocks():
                self.num_samples += len(block)
                yield block

        self._reader = self._reflected(counted())
        while not ends or position < self.num_samples // features.hop:
            power, ends = self._power(position)
            if ends:  # all of the sound has been read
                power = power[: max(self.num_samples // features.hop - position, 0)]
            self._loudest = max(self._loudest, power.max(initial=-np.inf))
            position += features.num_frames
        self.frames = self.total = -(-self.num_samples // features.hop)
        self._reader = self._reflected(stream.blocks())

    def window(self, position: int) -> np.ndarray:
        """Returns the frames of a window from this one on, float32 `[T, M]`, padded with zeros."""
        features = self._features
        power, _ = self._power(position)
        own = min(max(self.num_samples // features.hop - position, 0), features.num_frames)
        values = np.asarray(compressed(power[:own], self._loudest))
        return np.pad(values, ((0, features.num_frames - own), (0, 0)))

    def _power(self, position: int) -> tuple[np.ndarray, bool]:
        """Returns the logarithms of a window's power, and whether the sound ends within it."""
        features = self._features
        width = (features.num_frames - 1) * features.hop + features.fft_length
        start = position * features.hop
        samples = self._reader.read(start, start + width + 1)
        padded = np.pad(samples, (0, max(width - len(samples), 0)))[:width]
        return features.log_power(padded), len(samples) <= width

    def _reflected(self, blocks: Iterable[np.ndarray]) -> SampleReader:
        return SampleReader(reflected(blocks, self._features.fft_length // 2))


def reflected(blocks: Iterable[np.ndarray], half: int) -> Iterator[np.ndarray]:
    """Yields blocks of a sound with `half` samples reflected at both ends, as `numpy.pad` does."""
    blocks = iter(blocks)
    begin = np.zeros(0, np.float32)
    while len(begin) <= half and (block := next(blocks, None)) is not None:
        begin = np.concatenate([begin, block])
    yield begin[half:0:-1]
    yield begin
    end = begin[-half - 1 :]
    for block in blocks:
        yield block
        end = np.concatenate([end, block])[-half - 1 :]
    yield end[-2::-1]
