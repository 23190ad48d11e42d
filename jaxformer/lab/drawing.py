"""What the pictures of the laboratory have in common: a canvas, heat maps, colours."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.extras import optional_module
from jaxformer.io.files import replacing
from jaxformer.training.logging.plot import COLOURS

__all__ = ["COLOURS", "canvas", "frame", "heat_map", "save"]


def canvas(
    title: str, size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Any, np.ndarray]:
    """A picture with a title and a grid of axes.

    Args:
        title: What the picture shows; a second line may say with which settings.
        size: Width and height in inches.
        rows: Rows of axes.
        columns: Columns of axes.
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
    """Names a plot and its axes, and draws a light grid."""
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
        axes: Where.
        values: `[rows, columns]`.
        title: What the matrix is.
        x: The name of the columns.
        y: The name of the rows.
        bar: The label of the colour bar; None: no bar.
        **options: Further arguments of matplotlib's `imshow`. Without a colour map, values of both
            signs get one that is white at 0.

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


def save(figure: Any, path: Path) -> Path:
    """Writes a figure as .png, .svg or another format of matplotlib's, by the file's ending.

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
