"""Draws an architecture: columns of boxes from the inputs at the bottom to the heads on top."""

from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import Any

from jaxformer.extras import optional_module
from jaxformer.lab.diagram.architecture import Architecture, Column
from jaxformer.lab.diagram.graph import Node, levels
from jaxformer.lab.drawing import new_figure

# Inches.
_WIDTH, _PITCH, _GAP, _LANE = 2.7, 2.95, 0.36, 0.2
_TITLE, _LINE, _SUM = 0.32, 0.165, 0.22
_LETTERS = 44  # of a line in a box
_PAD = 0.3
_COLOURS = {
    "input": "#ffffff",
    "embedding": "#fce0e0",
    "position": "#e3f1dc",
    "norm": "#f4f3c0",
    "attention": "#ffe0b8",
    "mlp": "#c9e8f6",
    "head": "#dfdff3",
    "other": "#eeeeee",
}


@dataclass
class _Place:
    """The position of a node: its center and half its width and height."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> float:
        return self.y + self.height

    @property
    def bottom(self) -> float:
        return self.y - self.height


@dataclass
class _Layout:
    """The positions of a column's nodes, around x = 0 and from y = 0 upwards."""

    places: dict[Node, _Place]
    lanes: list[tuple[Node, Node, float]]
    """Edges past other nodes: from, to, and the x of their vertical part."""
    frame: tuple[float, float, float, float]
    """Left, bottom, right and top of the block."""
    left: float
    right: float
    top: float


def draw(architecture: Architecture, title: str) -> Any:
    """Draws an architecture."""
    layouts = [_layout(column) for column in architecture.columns]
    lefts, x = [], 0.3
    for layout in layouts:
        lefts.append(x)
        x += 0.75 - layout.left + layout.right
    width = max(x + 0.2, 4.6)
    height = max(layout.top for layout in layouts)
    notes = _notes(architecture, width)
    bottom = 0.25 + 0.18 * len(notes)
    size = (width, bottom + height + 0.85)
    figure = new_figure(size)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(0, size[1]))
    axes.set_axis_off()
    axes.text(0.3, size[1] - 0.3, title, fontsize=13, fontweight="bold", va="center")
    total = f"{architecture.parameters:,} parameters; {architecture.summary}"
    axes.text(0.3, size[1] - 0.58, total, fontsize=9, color="#444444", va="center")
    for row, note in enumerate(reversed(notes)):
        axes.text(0.3, 0.2 + 0.18 * row, note, fontsize=8, color="#444444", va="center")
    for column, layout, left in zip(architecture.columns, layouts, lefts, strict=True):
        _move(layout, left + 0.75 - layout.left, bottom)
        _draw_column(axes, column, layout)
    drawn = zip(architecture.columns, layouts, strict=True)
    for (before, below), (column, layout) in pairwise(drawn):
        _draw_cross(axes, below.places[before.output], below.right, column, layout)
    return figure


def _layout(column: Column) -> _Layout:
    """Positions the nodes of a column by level, and routes its skip connections on lanes."""
    level = levels(*column.ends)
    rows: dict[int, list[Node]] = {}
    for node, number in level.items():
        rows.setdefault(number, []).append(node)
    inside = [level[node] for node in column.block]
    places: dict[Node, _Place] = {}
    y = 0.0
    for number in sorted(rows):
        y += _PAD if number in (min(inside), max(inside) + 1) else 0
        sizes = {node: _size(node) for node in rows[number]}
        height = max(high for _, high in sizes.values())
        for node, x in _x_positions(rows[number], places).items():
            wide, high = sizes[node]
            places[node] = _Place(x, y + high / 2, wide / 2, high / 2)
        y += height + _GAP
    lanes = _lanes(column, places, level)
    box = [places[node] for node in column.block]
    edge = max([place.x + place.width for place in box] + [x for *_, x in lanes])
    frame = (
        min(place.x - place.width for place in box) - 0.2,
        min(place.bottom for place in box) - _PAD - 0.08,
        edge + 0.15,
        max(place.top for place in box) + 0.2,
    )
    left = min(place.x - place.width for place in places.values())
    right = max(edge + 0.15, *(place.x + place.width for place in places.values()))
    return _Layout(places, lanes, frame, left, right, y)


def _size(node: Node) -> tuple[float, float]:
    if node.box.kind == "sum":
        return _SUM, _SUM
    return _WIDTH, _TITLE + _LINE * len(_lines(node))


def _lines(node: Node) -> list[str]:
    box = node.box
    lines = [part for line in box.lines for part in wrap(line, _LETTERS)]
    unit = "parameter" if box.parameters == 1 else "parameters"
    return [*lines, *([f"{box.parameters:,} {unit}"] if box.parameters else [])]


def _x_positions(nodes: list[Node], places: dict[Node, _Place]) -> dict[Node, float]:
    """Returns the x of the nodes of a level: above their inputs, siblings side by side."""
    found: dict[Node, float] = {}
    groups: dict[tuple[float, ...], list[Node]] = {}
    for node in nodes:
        groups.setdefault(tuple(sorted({places[s].x for s in node.inputs})), []).append(node)
    for sources, group in groups.items():
        centre = sum(sources) / len(sources) if sources else 0.0
        for place, node in enumerate(group):
            found[node] = centre + (place - (len(group) - 1) / 2) * _PITCH
    return found


def _lanes(
    column: Column, places: dict[Node, _Place], level: dict[Node, int]
) -> list[tuple[Node, Node, float]]:
    """Assigns each skip connection to the innermost free lane."""
    edge = max(places[node].x + places[node].width for node in column.block) + _LANE
    lanes: list[tuple[Node, Node, float]] = []
    for node in level:
        for source in node.inputs:
            if level[node] - level[source] == 1:
                continue
            lane = edge
            while any(
                x == lane and level[a] < level[node] and level[source] < level[b]
                for a, b, x in lanes
            ):
                lane += _LANE
            lanes.append((source, node, lane))
    return lanes


def _move(layout: _Layout, x: float, y: float) -> None:
    for place in layout.places.values():
        place.x, place.y = place.x + x, place.y + y
    layout.lanes = [(source, node, lane + x) for source, node, lane in layout.lanes]
    left, bottom, right, top = layout.frame
    layout.frame = left + x, bottom + y, right + x, top + y
    layout.left, layout.right = layout.left + x, layout.right + x


def _draw_column(axes: Any, column: Column, layout: _Layout) -> None:
    patches = optional_module("matplotlib.patches", "drawing")
    left, bottom, right, top = layout.frame
    style = patches.BoxStyle("Round", pad=0, rounding_size=0.12)
    axes.add_patch(
        patches.FancyBboxPatch(
            (left, bottom), right - left, top - bottom, boxstyle=style, fc="#f5f5f5", ec="#999999"
        )
    )
    text = {"ha": "right", "va": "top", "fontsize": 12}
    axes.text(left - 0.1, top - 0.05, column.repeats, **text)
    if column.name:
        axes.text(left - 0.1, top - 0.3, column.name, **text | {"fontsize": 8, "rotation": 90})
    for node, place in layout.places.items():
        _draw_node(axes, patches, node, place)
        for source in node.inputs:
            lanes = [x for a, b, x in layout.lanes if a is source and b is node]
            if lanes:
                _draw_skip(axes, layout, source, place, lanes[0])
            else:
                _draw_edge(axes, layout.places[source], place)
        if node in column.shapes:
            y = top if node in column.block else place.top
            label = {"fontsize": 8, "color": "#444444", "va": "center"}
            axes.text(place.x + 0.07, y + 0.13, column.shapes[node], **label)
        if any(node is end for end in column.ends):
            _arrow(axes, (place.x, place.top), (place.x, place.top + _GAP))


def _draw_node(axes: Any, patches: Any, node: Node, place: _Place) -> None:
    colour = {"ec": "#333333", "linewidth": 1, "zorder": 3}
    if node.box.kind == "sum":
        axes.add_patch(patches.Circle((place.x, place.y), place.height, fc="white", **colour))
        axes.text(place.x, place.y, "+", ha="center", va="center", fontsize=13, zorder=4)
        return
    axes.add_patch(
        patches.FancyBboxPatch(
            (place.x - place.width, place.bottom),
            2 * place.width,
            2 * place.height,
            boxstyle=patches.BoxStyle("Round", pad=0, rounding_size=0.07),
            fc=_COLOURS[node.box.kind],
            **colour,
        )
    )
    text = {"ha": "center", "va": "center", "zorder": 4}
    y = place.top - _TITLE / 2
    axes.text(place.x, y, node.box.title, fontsize=10, fontweight="bold", **text)
    for row, line in enumerate(_lines(node)):
        below = y - _LINE * (row + 1.05)
        axes.text(place.x, below, line, fontsize=8, color="#333333", **text)


def _draw_edge(axes: Any, source: _Place, target: _Place) -> None:
    if abs(source.x - target.x) < 1e-6:
        _arrow(axes, (source.x, source.top), (target.x, target.bottom))
    else:
        middle = target.bottom - 0.14
        points = [(source.x, source.top), (source.x, middle), (target.x, middle)]
        _arrow(axes, *points, (target.x, target.bottom))


def _draw_skip(axes: Any, layout: _Layout, source: Node, target: _Place, lane: float) -> None:
    """Draws a skip connection, which branches off just below the first other reader."""
    skipping = [node for a, node, _ in layout.lanes if a is source]
    readers = [n for n in layout.places if source in n.inputs and n not in skipping]
    place = layout.places[source]
    start = min((layout.places[n].bottom for n in readers), default=place.top + _GAP) - 0.14
    points = [(place.x, place.top), (place.x, start), (lane, start), (lane, target.y)]
    _arrow(axes, *points, (target.x + target.width, target.y))


def _draw_cross(axes: Any, source: _Place, right: float, column: Column, layout: _Layout) -> None:
    """Draws the edge from the encoder outputs to the decoder blocks that read them."""
    for node in column.cross:
        target = layout.places[node]
        x, y = right + 0.25, source.top + 0.25
        points = [(source.x, source.top), (source.x, y), (x, y), (x, target.y)]
        _arrow(axes, *points, (target.x - target.width, target.y))


def _arrow(axes: Any, *points: tuple[float, float]) -> None:
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, color="#333333", linewidth=1, zorder=2, solid_joinstyle="round")
    axes.annotate(
        "",
        points[-1],
        points[-2],
        arrowprops={"arrowstyle": "-|>", "color": "#333333", "shrinkA": 0, "shrinkB": 0, "lw": 1},
        zorder=2,
    )


def _notes(architecture: Architecture, width: float) -> list[str]:
    """Returns the notes below the figure, wrapped to its width in inches."""
    shapes = [shape for column in architecture.columns for shape in column.shapes.values()]
    reads_encoder = any(shape.startswith("[B, S") for shape in shapes)
    letters = "S tokens of the encoder, T of the decoder" if reads_encoder else "T tokens"
    notes = [f"B rows, {letters}. Parameter counts in the gray block are per layer."]
    for column in architecture.columns:
        prefix = f"{column.name}: " if column.name else ""
        notes += [prefix + note for note in column.notes]
    return [line for note in notes for line in wrap(note, int(15 * width))]
