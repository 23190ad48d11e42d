"""Plots how the wall time of a run was spent: one bar per start on a common time axis."""

from pathlib import Path

from jaxformer.training.logging.goodput import BETWEEN, LOST, Goodput
from jaxformer.training.logging.plot import canvas, label, save_picture
from jaxformer.training.logging.progress import duration

_COLOURS = {
    "step": "#009E73",
    "imports": "#555555",
    "corpus": "#B2A27C",
    "start": "#999999",
    "trace": "#A9DDF8",
    "compile": "#56B4E9",
    "data": "#E69F00",
    "evaluation": "#0072B2",
    "save": "#CC79A7",
    LOST: "#D55E00",
    BETWEEN: "#000000",
}
_MOST_LANES = 12
_FINEST = 1 / 2000  # fraction of the width; shorter pieces are merged with the next one
_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def plot_goodput(found: Goodput, path: Path, title: str) -> Path:
    """Draws the starts of a run below each other, colored by part."""
    wall = duration(found.wall)
    figure, axes = canvas(title, f"goodput {found.share:.1%} of {wall}: kept updates")
    scale, unit = next(each for each in _UNITS if found.wall >= 2 * each[0] or each[0] == 1)
    lanes = min(len(found.starts), _MOST_LANES)
    for part, colour in _COLOURS.items():
        for lane, spans in enumerate(_spans(found, part, lanes)):
            bars = [(at / scale, width / scale) for at, width in spans]
            axes.broken_barh(bars, (lane - 0.4, 0.8), facecolors=colour, linewidth=0)
    axes.set_xlim(0, found.wall / scale)
    axes.set_ylim(lanes - 0.5, -0.5)
    names = [f"start {number}" for number in range(1, lanes + 1)]
    if len(found.starts) > lanes:
        names[-1] = f"starts {lanes} to {len(found.starts)}"
    axes.set_yticks(range(lanes), names)
    axes.set_xlabel(f"{unit} since the first start")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _name_colours(axes, found)
    return save_picture(figure, path)


def _spans(found: Goodput, part: str, lanes: int) -> list[list[tuple[float, float]]]:
    """Returns the begin and duration of a part for each lane, with adjacent pieces merged."""
    zero = found.starts[0].began
    finest = found.wall * _FINEST
    spans: list[list[tuple[float, float]]] = [[] for _ in range(lanes)]
    for number, start in enumerate(found.starts):
        lane = spans[min(number, lanes - 1)]
        for at, width, name in start.pieces():
            if name != part or width <= 0:
                continue
            begin, end = at - zero, at - zero + width
            if lane and begin - (lane[-1][0] + lane[-1][1]) < finest:
                begin, _ = lane.pop()
            lane.append((begin, end - begin))
    return spans


def _name_colours(axes, found: Goodput) -> None:
    """Labels each color on the right with its part and total time."""
    rows = [(part, seconds) for part, seconds in found.parts.items() if seconds > 0]
    for number, (part, seconds) in enumerate(rows):
        name = "between (blank)" if part == BETWEEN else part
        text = f"{name}  {seconds / found.wall:.1%}"
        label(axes, 0.97 - 0.085 * number, text, _COLOURS[part])
