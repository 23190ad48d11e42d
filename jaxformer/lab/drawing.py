"""Helpers shared by the figures of the lab: canvas, heat maps, labels and colors."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.extras import optional_module
from jaxformer.io.files import replacing
from jaxformer.training.logging.plot import COLOURS

__all__ = ["COLOURS", "canvas", "frame", "heat_map", "new_figure", "save", "shown_text"]


def new_figure(size: tuple[float, float], **options: Any) -> Any:
    """Creates a matplotlib figure of a size in inches; needs no display."""
    agg = optional_module("matplotlib.backends.backend_agg", "drawing")
    figure = optional_module("matplotlib.figure", "drawing").Figure(size, dpi=150, **options)
    agg.FigureCanvasAgg(figure)
    return figure


def canvas(
    title: str, size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Any, np.ndarray]:
    """Creates a figure with a title and a grid of axes `[rows, columns]`; the size is in inches."""
    figure = new_figure(size, layout="constrained")
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=12.5)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def frame(axes: Any, title: str, x: str, y: str) -> None:
    """Sets the title and axis labels of a plot, and draws a light grid."""
    _label(axes, title, x, y)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def heat_map(
    axes: Any,
    values: np.ndarray,
    title: str,
    x: str,
    y: str,
    *,
    bar: str | None = None,
    **options: Any,
) -> Any:
    """Draws a matrix `[rows, columns]` with row 0 at the top; `bar` labels its color bar.

    `options` are passed to matplotlib's `imshow`. The default color map for values of both signs is
    white at 0.
    """
    values = np.asarray(values, np.float32)
    if "cmap" not in options and np.nanmin(values) < 0 < np.nanmax(values):
        limit = float(np.nanmax(np.abs(values)))
        options = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit} | options
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **options)
    _label(axes, title, x, y)
    if bar is not None:
        axes.figure.colorbar(image, ax=axes, label=bar)
    return image


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def shown_text(text: str, longest: int | None = None) -> str:
    """Returns a text as a figure label: printable, without math mode, and shortened."""
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    if longest is not None and len(text) > longest:
        text = f"{text[: longest - 1]}…"
    return text.replace("$", r"\$")


def save(figure: Any, path: Path) -> Path:
    """Writes a figure in the format of the file extension, such as .png; returns the path."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."))
    return path
