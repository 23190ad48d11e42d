"""Plots the loss curve of a run, or of several runs together."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.io.files import replacing
from jaxformer.training.logging.metrics_writer import read_metrics

# Okabe and Ito's palette, which is distinguishable for color-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")

_LOSS_TICKS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 20, 50)


def plot_loss(folder: Path, title: str, subtitle: str = "") -> Path | None:
    """Draws training and validation loss over the steps."""
    train = curve(folder, "train")
    validation = curve(folder, "validation")
    if not len(train[0]):
        return None
    figure, axes = canvas(title, subtitle)
    blue, red = COLOURS[:2]
    axes.plot(*train, color=blue, alpha=0.25, linewidth=0.8)
    alone = "o" if len(train[0]) == 1 else None  # one step makes a point, not a line
    axes.plot(train[0], smooth(train[1]), color=blue, linewidth=1.8, marker=alone, markersize=3.5)
    labels = [(train[0][-1], smooth(train[1])[-1], "training", blue)]
    if len(validation[0]):
        axes.plot(*validation, color=red, linewidth=1.4, marker="o", markersize=3.5)
        labels.append((validation[0][-1], validation[1][-1], "validation", red))
    per_token = is_per_token(folder)
    _frame(axes, [train[1], validation[1]], per_token)
    _label_ends(axes, labels, per_token)
    return save_picture(figure, folder / "loss.png")


class Line(NamedTuple):
    """A curve in a comparison."""

    name: str
    x: np.ndarray
    """Steps, or FLOPs."""
    y: np.ndarray


def plot_comparison(
    lines: Sequence[Line],
    path: Path,
    title: str,
    metric: str = "loss",
    per_token: bool = False,
    compute: bool = False,
) -> Path:
    """Draws a validation metric of several runs in one figure."""
    words = metric.replace("_", " ")
    figure, axes = canvas(title, f"validation {words}{' against compute' * compute}")
    lines = [line for line in lines if len(line.x)]
    ends = []
    for colour, line in zip(itertools.cycle(COLOURS), lines, strict=False):
        axes.plot(line.x, line.y, color=colour, linewidth=1.6, marker="o", markersize=3)
        ends.append((line.x[-1], line.y[-1], line.name, colour))
    _frame(axes, [line.y for line in lines], per_token, None if metric == "loss" else words)
    if compute:
        axes.autoscale(axis="x")  # a logarithmic axis cannot start at 0
        axes.set_xscale("log")
        axes.set_xlabel("FLOPs of training (forward and backward, from the configuration)")
    _label_ends(axes, ends, per_token)
    return save_picture(figure, path)


def curve(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and the losses of one split, where the loss was finite."""
    rows = [
        (row["step"], row["loss"])
        for row in read_metrics(folder, split)
        if row.get("loss") is not None
    ]
    steps, losses = zip(*rows, strict=True) if rows else ((), ())
    return np.asarray(steps, float), np.asarray(losses, float)


def is_per_token(folder: Path) -> bool:
    """Whether the loss is a mean over predicted tokens, so that its exponential is a perplexity."""
    return any("perplexity" in row for row in read_metrics(folder))


def smooth(values: np.ndarray) -> np.ndarray:
    """Returns a moving average over about a thirtieth of the curve.

    The window is centered, so that the steep beginning is not shifted to the right; it shrinks
    towards the start, and looks back only at the end.
    """
    half = len(values) // 60
    reach = [min(half, i) for i in range(len(values))]
    return np.array([values[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def canvas(title: str, subtitle: str) -> tuple[Any, Any]:
    """Returns a figure and its axes, with a title above and room for labels on the right."""
    # The object interface needs no display and does not touch pyplot's global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=160)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.08, 0.11, 0.75, 0.74))
    figure.text(0.08, 0.935, title, fontsize=14, fontweight="bold")
    figure.text(0.08, 0.885, subtitle, fontsize=9.5, color="#555555")
    return figure, axes


def _frame(
    axes: Any, curves: Sequence[np.ndarray], per_token: bool, name: str | None = None
) -> None:
    """Draws grid and axis labels; the loss axis is logarithmic if it spans more than a factor of 3.

    `name` is the label of a metric other than the loss.
    """
    values = np.concatenate([values for values in curves if len(values)])
    if name is None and len(values) and values.min() > 0 and values.max() / values.min() > 3:
        axes.set_yscale("log")
        low, high = values.min() * 0.95, values.max() * 1.05
        ticks = [tick for tick in _LOSS_TICKS if low <= tick <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel("step")
    axes.set_ylabel(name or ("loss (nats per token)" if per_token else "loss"))
    axes.set_xlim(left=0)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label_ends(
    axes: Any, labels: Sequence[tuple[float, float, str, str]], per_token: bool
) -> None:
    """Labels each curve at its last point, moving labels apart where they would overlap."""
    to_pixels = axes.transData.transform
    to_data = axes.transAxes.inverted().transform
    placed = -np.inf
    right = max((x for x, *_ in labels), default=0.0)
    for _, y, name, colour in sorted(labels, key=lambda end: end[1]):
        height = max(to_data(to_pixels((right, y)))[1], placed + 0.085)
        placed = height
        perplexity = f"\nperplexity {np.exp(y):.1f}" if per_token else ""
        label(axes, height, f"{name}  {y:.3f}{perplexity}", colour, linespacing=1.1)


def label(axes: Any, height: float, text: str, colour: str, **style: Any) -> None:
    """Writes a text to the right of the axes."""
    style |= {"color": colour, "fontsize": 9, "va": "center"}
    axes.text(1.015, height, text, transform=axes.transAxes, **style)


def save_picture(figure: Any, path: Path) -> Path:
    """Writes a figure, widened to fit the labels on its right; returns the path."""
    with replacing(path) as aside:
        kind = path.suffix.removeprefix(".") or "png"
        figure.savefig(aside, format=kind, bbox_inches="tight", pad_inches=0.2)
    return path
