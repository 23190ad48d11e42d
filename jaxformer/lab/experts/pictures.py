"""Figures of experts: load, routing entropy, and agreement of the routing."""

import math
from typing import Any

import numpy as np

from jaxformer.lab.drawing import COLOURS, canvas, frame, heat_map
from jaxformer.lab.experts.routing import Routing

_MOST_LOAD = 4.0
"""The load of the darkest color; classes with few tokens can have larger loads."""
_MOST_COLUMNS = 4
_MOST_LABELS, _MOST_NUMBERS = 32, 16


def load_picture(routing: Routing) -> Any:
    """Draws the load of every expert of every layer, and the extremes of each layer."""
    load = routing.load()
    size = (_width(routing.num) + 7.0, _height(routing))
    each = f"{_per_token(routing)} of {routing.num} experts"
    title = f"Load of the experts: {len(routing.ids):,} tokens, each to {each}"
    options = {"width_ratios": [_width(routing.num) + 1, 5]}
    figure, ((left, right),) = canvas(title, size, 1, 2, gridspec_kw=options)
    image = _load_map(left, load, "Each expert", "layer")
    figure.colorbar(image, ax=left, label="load / uniform load")
    _number_layers(left, routing)
    _by_layer(right, routing, {"the busiest": load.max(axis=1), "the least busy": load.min(axis=1)})
    right.axvline(1, color="#888888", linewidth=1, linestyle=":", label="the mean")
    _finish(right, "The busiest expert, and the least busy", "load / uniform load")
    return figure


def entropy_picture(routing: Routing) -> Any:
    """Draws the routing entropy of tokens and of the mean load, by layer."""
    title = "Entropy of the routing"
    figure, ((axes,),) = canvas(title, (9.5, _height(routing)))
    low, high = np.quantile(routing.entropies, (0.1, 0.9), axis=1)
    places = np.arange(len(routing.layers))
    axes.fill_betweenx(places, low, high, color=COLOURS[0], alpha=0.15, label="80% of the tokens")
    means = {
        "a token, mean": routing.entropies.mean(axis=1),
        "the mean load": routing.load_entropies(),
    }
    _by_layer(axes, routing, means)
    for count, style in ((routing.num, "--"), (_per_token(routing), ":")):
        options = {"color": "#888888", "linewidth": 1, "linestyle": style}
        axes.axvline(math.log(count), label=f"ln {count}", **options)
    _finish(axes, "By layer", "nats")
    return figure


def agreement_picture(routing: Routing) -> Any:
    """Draws the fraction of experts shared by two occurrences of a token."""
    title = "Agreement: the fraction of experts that two occurrences of a token share"
    figure, ((left, right),) = canvas(title, (14, _height(routing)), 1, 2)
    curves = {"the same token": routing.mean_agreements(), "any two tokens": routing.chance()}
    _by_layer(left, routing, curves)
    left.set_xlim(-0.02, 1.02)
    _finish(left, "All tokens", "fraction of shared experts")
    by_class = {
        f"{name}\n({np.sum(chosen):,})": routing.mean_agreements(chosen)
        for name, chosen in routing.by_class().items()
    }
    there = {name: means for name, means in by_class.items() if not np.isnan(means[0])}
    if not there:
        right.set_axis_off()
        right.text(0, 0.5, "No token occurs twice: give a longer text.")
        return figure
    values = np.stack(list(there.values()), axis=1)
    options = {"cmap": "viridis", "vmin": 0.0, "vmax": 1.0, "bar": "fraction shared"}
    heat_map(right, values, "By class of the token", "", "layer", **options)
    right.set_xticks(range(len(there)), there, fontsize=8)
    _number_layers(right, routing)
    return figure


def class_picture(routing: Routing) -> Any:
    """Draws the load of the experts by token class, with a panel for each layer."""
    rows = {"all": np.ones(len(routing.ids), bool)} | routing.by_class()
    names = [f"{name} ({np.sum(chosen):,})" for name, chosen in rows.items()]
    load = np.stack([routing.load(chosen) for chosen in rows.values()], axis=1)
    columns = max(1, min(_MOST_COLUMNS, len(load), int(18 / _width(routing.num))))
    lines = math.ceil(len(load) / columns)
    columns = math.ceil(len(load) / lines)
    size = (columns * _width(routing.num) + 3.4, lines * (0.24 * len(names) + 0.9) + 0.9)
    title = "Load of the experts by class of token (number of tokens)"
    figure, grid = canvas(title, (max(size[0], 8.0), size[1]), lines, columns)
    for number, axes in enumerate(grid.flat):
        if number >= len(load):
            axes.set_axis_off()
            continue
        image = _load_map(axes, load[number], f"layer {routing.layers[number]}", "")
        first = number % columns == 0
        axes.set_yticks(range(len(names)) if first else [], names if first else [], fontsize=9)
    figure.colorbar(image, ax=list(grid.flat), label="load / uniform load")
    return figure


def _load_map(axes: Any, load: np.ndarray, title: str, y: str) -> Any:
    """Draws loads `[rows, E]`; white is a uniform load."""
    from matplotlib.colors import TwoSlopeNorm

    norm = TwoSlopeNorm(1.0, 0.0, _MOST_LOAD)
    image = heat_map(axes, load, title, "expert", y, cmap="RdBu_r", norm=norm)
    axes.set_xticks(range(0, load.shape[1], math.ceil(load.shape[1] / _MOST_NUMBERS)))
    return image


def _by_layer(axes: Any, routing: Routing, curves: dict[str, np.ndarray]) -> None:
    """Draws curves `[L]` downwards, to align with a map of the layers."""
    places = np.arange(len(routing.layers))
    for color, (label, values) in zip(COLOURS, curves.items(), strict=False):
        axes.plot(values, places, color=color, label=label, marker="o", markersize=3.5)
    axes.set_ylim(len(places) - 0.5, -0.5)
    _number_layers(axes, routing)


def _finish(axes: Any, title: str, x: str) -> None:
    frame(axes, title, x, "layer")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _number_layers(axes: Any, routing: Routing) -> None:
    step = math.ceil(len(routing.layers) / _MOST_LABELS)
    places = range(0, len(routing.layers), step)
    axes.set_yticks(places, [str(routing.layers[place]) for place in places])


def _per_token(routing: Routing) -> int:
    return routing.experts.shape[-1]


def _width(num: int) -> float:
    """Returns the width of a map of experts in inches."""
    return min(max(0.16 * num, 2.4), 9.0)


def _height(routing: Routing) -> float:
    return min(max(0.28 * len(routing.layers) + 1.6, 3.4), 11.0)
