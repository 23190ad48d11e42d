"""Helpers shared by the figures of the lab: canvas, heat maps, labels and colors."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.extras import optional_module
from jaxformer.io.files import replacing
from jaxformer.training.logging.plot import COLOURS

__all__ = ["COLOURS", "canvas", "frame", "heat_map", "save", "shown_text"]


def canvas(
    title: str, size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Any, np.ndarray]:
    """Creates a figure with a title and a grid of axes.

    Args:
        title: The title; a second line may name the settings.
        size: Width and height in inches.
        rows: Number of rows of axes.
        columns: Number of columns of axes.
        **options: Further arguments of matplotlib's `subplots`, such as `sharey`.

    Returns:
        The figure, and the axes `[rows, columns]`.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    agg = optional_module("matplotlib.backends.backend_agg", "drawing")
    figure = optional_module("matplotlib.figure", "drawing").Figure(
        figsize=size, dpi=150, layout="constrained"
    )
    agg.FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=12.5)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def frame(axes: Any, title: str, x: str, y: str) -> None:
    """Sets the title and axis labels of a plot, and draws a light grid."""
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
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
    """Draws a matrix with row 0 at the top.

    Args:
        axes: The axes to draw on.
        values: `[rows, columns]`.
        title: The title of the plot.
        x: The label of the x axis.
        y: The label of the y axis.
        bar: The label of the color bar; None draws no bar.
        **options: Further arguments of matplotlib's `imshow`. The default color map for values of
            both signs is white at 0.

    Returns:
        The image.
    """
    values = np.asarray(values, np.float32)
    if "cmap" not in options and np.nanmin(values) < 0 < np.nanmax(values):
        limit = float(np.nanmax(np.abs(values)))
        options = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit} | options
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **options)
    axes.set_title(title, fontsize=10.5, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if bar is not None:
        axes.figure.colorbar(image, ax=axes, label=bar)
    return image


def shown_text(text: str, longest: int | None = None) -> str:
    """Returns a text as a label of a figure: printable, not read as a formula, and not too long."""
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    if longest is not None and len(text) > longest:
        text = f"{text[: longest - 1]}…"
    return text.replace("$", r"\$")


def save(figure: Any, path: Path) -> Path:
    """Writes a figure as .png, .svg or another format of matplotlib, by the file extension.

    Args:
        figure: A matplotlib figure.
        path: The file to write or replace.

    Returns:
        The path.

    Raises:
        DataError: The file cannot be written.
    """
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."))
    return path
