"""The most likely classes of a sound, and the attention of an Audio Spectrogram Transformer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxformer.generation.speech.features import filter_banks_of
from jaxformer.lab.drawing import COLOURS, canvas, frame, shown_text
from jaxformer.lab.speech.attention import patterns
from jaxformer.lab.speech.sound import Sound, Spectrogram, draw_spectrogram, mel_centres
from jaxformer.pretrained.model import Arrays, Pretrained
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.prediction.api import label_names

MOST_CLASSES = 10


def top_classes(pretrained: Pretrained, inputs: Arrays) -> list[tuple[str, float]]:
    """Returns the most likely classes with their probabilities, in decreasing order."""
    logits = np.asarray(forward(pretrained, inputs)["logits"][0], np.float64)
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    names = label_names(pretrained)
    order = np.argsort(-shares, kind="stable")[:MOST_CLASSES]
    return [(names[number], float(shares[number])) for number in order]


def classes_picture(classes: Sequence[tuple[str, float]]) -> Any:
    """Draws the probabilities of classes as bars."""
    figure, ((axes,),) = canvas("The likeliest classes", (8, 0.3 * len(classes) + 1.3))
    names, shares = zip(*classes, strict=True)
    bars = axes.barh(range(len(shares)), shares, color=COLOURS[0])
    axes.bar_label(bars, [f"{share:.3f}" for share in shares], padding=3, fontsize=8)
    frame(axes, "", "probability", "")
    axes.set_yticks(range(len(names)), [shown_text(name) for name in names], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, min(1.0, 1.15 * max(shares)))
    return figure


def classified_spectrogram(pretrained: Pretrained, sound: Sound) -> Spectrogram:
    """Returns the filter banks of a sound for an Audio Spectrogram Transformer."""
    features = filter_banks_of(pretrained)
    centres = mel_centres(features.num_mel_bins, features.sampling_rate, "kaldi")
    seconds = features.hop / features.sampling_rate
    values = features.spectrogram(sound.waveform)
    return Spectrogram(values, features.frames_of(len(sound.waveform)), seconds, centres)


def patch_weights(pretrained: Pretrained, inputs: Arrays, layers: Sequence[int]) -> np.ndarray:
    """Returns the attention of the first token to each patch, `[layers, heads, rows, columns]`.

    Rows are frequencies.
    """
    config = pretrained.config
    weights = patterns(pretrained, inputs, "blocks.{}.attn.hook_pattern", layers)
    own = weights[:, :, 0, config.num_prefix :]
    return own.reshape(*own.shape[:2], *config.grid_of(config.image_size))


def patches_picture(
    title: str,
    maps: np.ndarray,
    names: Sequence[str],
    spectrogram: Spectrogram,
    patch_seconds: tuple[float, float],
) -> Any:
    """Draws the spectrogram above named maps of patches `[maps, rows, columns]`.

    `patch_seconds` are the time step between patches and the duration of a patch. The maps end with
    the sound.
    """
    size = (11, 1.05 * len(maps) + 2.6)
    options = {"sharex": True, "gridspec_kw": {"height_ratios": (2, *[1] * len(maps))}}
    figure, panels = canvas(title, size, len(maps) + 1, 1, **options)
    (above, *below) = panels[:, 0]
    seconds = spectrogram.frames * spectrogram.seconds_per_frame
    draw_spectrogram(above, spectrogram)
    step, length = patch_seconds
    # Each patch is drawn around its centre, with the width of the step.
    left = (length - step) / 2
    for axes, values, name in zip(below, maps, names, strict=True):
        extent = (left, left + values.shape[1] * step, -0.5, values.shape[0] - 0.5)
        looks = {"cmap": "Blues", "origin": "lower", "interpolation": "nearest", "vmin": 0}
        shown = values[:, : max(1, int(np.ceil((seconds - left) / step)))]
        axes.imshow(values, aspect="auto", extent=extent, vmax=float(shown.max()) or 1.0, **looks)
        axes.set_yticks([])
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    below[-1].set_xlabel("seconds")
    above.set_xlim(0, seconds)
    return figure
