"""The lattice of a CTC head: probabilities of frames, and alignments of a text."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from jaxformer.errors import DataError
from jaxformer.generation.speech.ctc import alignment_path, best_path, occupancy
from jaxformer.generation.speech.features import waveform_features_of
from jaxformer.generation.speech.frames import frame_log_probs
from jaxformer.generation.speech.transcripts import times_of, words_of
from jaxformer.lab.drawing import canvas, shown_text
from jaxformer.lab.speech.sound import Sound
from jaxformer.pretrained.model import Pretrained

_MOST_CLASSES, _LEAST_SHARE = 40, 0.05
_SECONDS_OF_ROW, _MOST_ROWS = 4.0, 8
_LABELS_OF_PART, MOST_PARTS = 24, 8
_PATH = "#cf222e"
_LOOKS = {"cmap": "Blues", "vmin": 0, "vmax": 1, "interpolation": "nearest", "aspect": "auto"}


@dataclass(frozen=True)
class Labelled:
    """A sound with the labels of a CTC head."""

    log_probs: np.ndarray
    """float32 `[T, V]`."""
    blank: int
    """The id of the blank."""
    labels: tuple[int, ...]
    """The labels of the text, without blanks."""
    names: list[str]
    """The name of each class."""
    text: str
    seconds: float
    """The time step between frames."""
    words: list[Mapping[str, Any]]
    """"word", "start" and "end" of each word."""


def labelled(pretrained: Pretrained, sound: Sound, text: str | None = None) -> Labelled:
    """Returns the scores of frames, with the labels of a given text or the most likely ones."""
    features = waveform_features_of(pretrained)
    tokenizer = pretrained.prompt_encoder.tokenizer
    blank = pretrained.model.heads["ctc"].blank
    log_probs = frame_log_probs(pretrained, sound.waveform, features)
    labels = best_path(log_probs, blank=blank)
    if text is not None:
        labels = _encoded(pretrained, text, len(log_probs))
    seconds = pretrained.config.samples_per_frame / features.sampling_rate
    words = words_of(tokenizer, labels, times_of(log_probs, labels, blank, seconds))
    names = [tokenizer.id_to_token(number) or str(number) for number in range(log_probs.shape[1])]
    names[blank] = "blank"
    written = tokenizer.decode(labels).strip()
    return Labelled(log_probs, blank, labels, names, written, seconds, words)


def _encoded(pretrained: Pretrained, text: str, frames: int) -> tuple[int, ...]:
    """Returns the labels of a text; raises DataError if the model cannot produce it in time."""
    encoder = pretrained.prompt_encoder
    labels = tuple(encoder.rendered(text))
    written = encoder.tokenizer.decode(labels)
    if written != text:
        raise DataError(
            f"text = {text!r}: is {written!r} in the characters of the model: write it as the "
            "model does, for example in upper case"
        )
    needed = len(labels) + sum(a == b for a, b in pairwise(labels))
    if needed > frames:
        raise DataError(
            f"text = {text!r}: needs at least {needed} frames, and the sound has {frames}: cut the "
            "text"
        )
    return labels


def emissions_picture(found: Labelled) -> Any:
    """Draws the probability of each class at each frame, and the most likely class."""
    probabilities = np.exp(found.log_probs)
    best = probabilities.argmax(axis=1)
    largest = probabilities.max(axis=0)
    is_best = np.isin(np.arange(len(largest)), best)
    order = np.lexsort((-largest, ~is_best))[:_MOST_CLASSES]
    drawn = is_best | (largest >= _LEAST_SHARE)
    kept = [n for n in order if drawn[n] and n != found.blank]
    shown = [*sorted(kept), found.blank]
    place = {number: row for row, number in enumerate(shown)}
    width = max(1, round(_SECONDS_OF_ROW / found.seconds))
    count = min(-(-len(best) // width), _MOST_ROWS)
    width = min(width, len(best))
    title = "Frames and tokens: probabilities, and the likeliest token of each frame"
    height = count * max(0.155 * len(shown) + 0.7, 1.6) + 0.5
    figure, rows = canvas(title, (11, height), count, 1)
    for number, axes in enumerate(rows[:, 0]):
        own = slice(number * width, (number + 1) * width)
        values = probabilities[own][:, shown]
        start, stop = own.start * found.seconds, (own.start + len(values)) * found.seconds
        extent = (start, stop, len(shown) - 0.5, -0.5)
        image = axes.imshow(values.T, extent=extent, **_LOOKS)
        times = (np.arange(len(values)) + own.start + 0.5) * found.seconds
        path = [place.get(label, np.nan) for label in best[own]]
        axes.plot(times, path, color=_PATH, linewidth=0.6, marker="o", markersize=2)
        axes.set_yticks(range(len(shown)), [shown_text(found.names[n]) for n in shown], fontsize=8)
        axes.set_xlim(start, start + width * found.seconds)
    rows[-1, 0].set_xlabel("seconds")
    figure.colorbar(image, ax=list(rows[:, 0]), label="probability", aspect=40)
    return figure


def lattice_pictures(found: Labelled) -> list[Any]:
    """Draws the alignments of a text in parts, with the most likely one as a line."""
    labels = found.labels
    path = alignment_path(found.log_probs, labels, blank=found.blank)
    shares = occupancy(found.log_probs, labels, blank=found.blank)
    count = min(-(-len(labels) // _LABELS_OF_PART), MOST_PARTS)
    pictures = []
    for part in range(count):
        first = part * _LABELS_OF_PART
        last = min(first + _LABELS_OF_PART, len(labels))
        states = range(2 * first, 2 * last + 1)
        frames = np.flatnonzero((path >= states[0]) & (path <= states[-1]))
        own = slice(int(frames[0]), int(frames[-1]) + 1)
        title = "CTC lattice: the alignments of the text with blanks (·), and the likeliest one"
        title += f" (part {part + 1} of {count})" if count > 1 else ""
        pictures.append(_lattice(found, shares, path, states, own, title))
    return pictures


def _lattice(
    found: Labelled, shares: np.ndarray, path: np.ndarray, states: range, own: slice, title: str
) -> Any:
    figure, ((axes,),) = canvas(title, (11, 0.15 * len(states) + 1.4))
    start, stop = own.start * found.seconds, own.stop * found.seconds
    extent = (start, stop, states[-1] + 0.5, states[0] - 0.5)
    values = shares[own, states[0] : states[-1] + 1]
    image = axes.imshow(values.T, extent=extent, **_LOOKS)
    times = (np.arange(own.start, own.stop) + 0.5) * found.seconds
    axes.plot(times, path[own], color=_PATH, linewidth=0.9, marker="o", markersize=2)
    names = [shown_text(found.names[found.labels[s // 2]]) if s % 2 else "·" for s in states]
    axes.set_yticks(list(states), names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds")
    figure.colorbar(image, ax=axes, label="share of all alignments", aspect=40)
    return figure
