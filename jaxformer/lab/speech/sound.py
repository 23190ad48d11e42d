"""A clip and its figure: waveform, spectrogram, and aligned words."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.functional.audio import log_mel, mel_filters
from jaxformer.functional.audio.spectrograms import MelScale
from jaxformer.lab.drawing import COLOURS, canvas, frame, shown_text

_TICKS = (100, 250, 500, 1000, 2000, 4000, 8000)
_MEL_BINS = 80
_LONGEST_WORD = 20


class Sound(NamedTuple):
    """A part of a sound file, at the sampling rate of a model."""

    name: str
    """The name of the file."""
    waveform: np.ndarray
    """float32 `[S]`."""
    sampling_rate: int

    @property
    def seconds(self) -> float:
        """The duration."""
        return len(self.waveform) / self.sampling_rate


class Spectrogram(NamedTuple):
    """A spectrogram and its axes."""

    values: np.ndarray
    """float32 `[T, M]`."""
    frames: int
    """The number of frames of the sound; later frames are padding."""
    seconds_per_frame: float
    """The time step between frames."""
    centres: np.ndarray
    """The frequency of each bin in Hz, `[M]`."""


def spectrogram_of(sound: Sound) -> Spectrogram:
    """Returns the log-mel spectrogram of a sound, for a model that reads waveforms."""
    rate = sound.sampling_rate
    hop, length = max(rate // 100, 1), max(rate // 40, 2)
    waveform = np.pad(sound.waveform, (0, max(0, length - len(sound.waveform))))
    sizes = {"num_mel_bins": _MEL_BINS, "sampling_rate": rate, "fft_length": length}
    values = np.asarray(log_mel(waveform, **sizes, hop=hop))
    return Spectrogram(values, len(values), hop / rate, mel_centres(_MEL_BINS, rate, "slaney"))


def mel_centres(num_mel_bins: int, sampling_rate: int, scale: MelScale) -> np.ndarray:
    """Returns the frequency of the largest weight of each mel filter, in Hz."""
    length = 1 << 14  # fine enough for narrow filters
    half = sampling_rate / 2
    lowest = 20.0 if scale == "kaldi" else 0.0
    highest = half if scale == "kaldi" else min(half, 8000.0)
    limits = {"min_frequency": lowest, "max_frequency": highest}
    sizes = {"num_mel_bins": num_mel_bins, "fft_length": length, "sampling_rate": sampling_rate}
    filters = mel_filters(**sizes, **limits, scale=scale)
    return filters.argmax(axis=0) * (sampling_rate / length)


def sound_picture(
    sound: Sound, spectrogram: Spectrogram, words: Sequence[Mapping[str, Any]] = ()
) -> Any:
    """Draws a waveform above its spectrogram, with each "word" between its "start" and "end"."""
    title = f"{sound.name}: {sound.seconds:.2f} seconds"
    ratio = {"height_ratios": (1, 2.6), "hspace": 0.02}
    size = (11, 5.4 if words else 4.8)
    figure, ((above,), (below,)) = canvas(title, size, 2, 1, sharex=True, gridspec_kw=ratio)
    times = np.arange(len(sound.waveform)) / sound.sampling_rate
    above.plot(times, sound.waveform, color=COLOURS[0], linewidth=0.5)
    frame(above, "", "", "sample")
    draw_spectrogram(below, spectrogram)
    below.set_xlabel("seconds")
    for word in words:
        above.axvspan(word["start"], word["end"], color="#eeeeee", linewidth=0, zorder=0)
        for axes, colour in ((above, "#999999"), (below, "#ffffff")):
            axes.axvline(word["start"], color=colour, linewidth=0.6, linestyle=":")
        place = {"xy": (word["start"], 1.0), "xycoords": ("data", "axes fraction")}
        offset = {"xytext": (0, 3), "textcoords": "offset points"}
        text = shown_text(word["word"].strip(), _LONGEST_WORD)
        above.annotate(text, **place, **offset, rotation=90, fontsize=8)
    below.set_xlim(0, sound.seconds)
    return figure


def draw_spectrogram(axes: Any, spectrogram: Spectrogram) -> None:
    """Draws the frames of a sound, low frequencies at the bottom."""
    values = spectrogram.values[: spectrogram.frames]
    bins = values.shape[1]
    extent = (0, len(values) * spectrogram.seconds_per_frame, -0.5, bins - 0.5)
    looks = {"cmap": "magma", "origin": "lower", "aspect": "auto", "interpolation": "nearest"}
    axes.imshow(values.T, extent=extent, **looks)
    centres = spectrogram.centres
    known = [hertz for hertz in _TICKS if centres[0] <= hertz <= centres[-1]]
    places = [int(np.abs(centres - hertz).argmin()) for hertz in known]
    axes.set_yticks(places, [f"{hertz:,}" for hertz in known])
    axes.set_ylabel("Hz")
