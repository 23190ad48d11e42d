"""Plots of studies: the mean over seeds as a line, the minimum and maximum as a band."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.lab.drawing import COLOURS


class Curve(NamedTuple):
    """The measurements of all runs with one setting."""

    name: str
    x: Sequence[float]
    values: np.ndarray
    """[runs, points]."""
    colour: str = COLOURS[0]
    dash: str = "-"
    """The line style in matplotlib's notation."""


def draw(axes: Any, curves: Sequence[Curve], marker: str = "") -> list[Any]:
    """Draws curves with their bands; returns the lines, for a legend."""
    lines = []
    for curve in curves:
        values = np.asarray(curve.values, float)
        (line,) = axes.plot(
            curve.x,
            values.mean(0),
            color=curve.colour,
            linestyle=curve.dash,
            marker=marker,
            markersize=4,
            linewidth=1.7,
            label=curve.name,
        )
        if len(values) > 1:
            axes.fill_between(
                curve.x, values.min(0), values.max(0), color=curve.colour, alpha=0.15, linewidth=0
            )
        lines.append(line)
    return lines


def lengths_axis(axes: Any, lengths: Sequence[int], trained: int) -> None:
    """Makes x a logarithmic axis of lengths, with a mark at the training length."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.axvline(trained, color="#888888", linewidth=0.8, linestyle=":")
