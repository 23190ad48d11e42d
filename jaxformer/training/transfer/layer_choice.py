"""A shallower model out of a deeper one: which of its layers are taken."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.errors import ConfigError
from jaxformer.training.transfer.origin import SavedFolder

Shapes = Mapping[str, tuple[int, ...]]

# Block i of every group of a stack, and what follows: "transformer.stack.group.", "0", "norms...".
_BLOCK = re.compile(r"(.*stack\.group\.)(\d+)\.(.*)")


class Row(NamedTuple):
    """A layer within a stacked parameter."""

    name: str
    index: int


@dataclass(frozen=True)
class Sources:
    """What another run offers for the parameters of this one, by the names that they have here."""

    shapes: dict[str, tuple[int, ...]]
    """The shapes that its parameters would have here."""
    rows: dict[str, tuple[Row, ...]]
    """The layers that make up a stacked parameter; without them it is taken as it is."""

    @classmethod
    def of(cls, shapes: Shapes) -> "Sources":
        """The other run's parameters under their own names."""
        return cls(dict(shapes), {})

    def read_for(self, name: str) -> tuple[str, ...]:
        """The names there of all that one parameter is made of."""
        return tuple(row.name for row in self.rows[name]) if name in self.rows else (name,)

    def array(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """A parameter from the arrays there."""
        if name not in self.rows:
            return arrays[name]
        return np.stack([arrays[row.name][row.index] for row in self.rows[name]])


def chosen_layers(
    here: Shapes,
    saved: SavedRun | SavedFolder,
    layers: tuple[int, ...],
    windows: tuple[int | None, ...],
) -> Sources:
    """Takes layer `layers[i]` of another model's stacks for layer i of this one's.

    Where layers of several kinds take turns (windowed and global ones), a layer becomes one of its
    own kind. Layers that share their parameters count once.

    Args:
        here: This model's shapes.
        saved: The other run.
        layers: Layers there, from 0.
        windows: This model's windows.

    Raises:
        ConfigError: There are more or fewer layers here than are chosen, there is no such layer
            there, or its window is another.
    """
    blocks = {name: found for name in here if (found := _BLOCK.fullmatch(name))}
    there = {name: found for name in saved.shapes if (found := _BLOCK.fullmatch(name))}
    for prefix in dict.fromkeys(found[1] for found in blocks.values()):
        available = _depth(prefix, saved.shapes, there)
        _check_stack(prefix, layers, _depth(prefix, here, blocks), available, saved.folder)
    their_windows = saved.model.windows
    _check_windows(layers, windows, their_windows)
    rows = {}
    for name, found in blocks.items():
        prefix, number, rest = found.groups()
        chosen = layers[int(number) :: len(windows)]
        sources = tuple(
            Row(f"{prefix}{layer % len(their_windows)}.{rest}", layer // len(their_windows))
            for layer in chosen
        )
        if all(row.name in saved.shapes for row in sources):
            rows[name] = sources
    kinds = {(blocks[name][1], blocks[name][3]) for name in rows}
    others = {
        name: shape
        for name, shape in saved.shapes.items()
        if name not in there or (there[name][1], there[name][3]) not in kinds
    }
    stacked = {name: (len(r), *saved.shapes[r[0].name][1:]) for name, r in rows.items()}
    return Sources(others | stacked, rows)


def _depth(prefix: str, shapes: Shapes, blocks: Mapping[str, re.Match]) -> int:
    """The number of layers of a stack that have parameters of their own."""
    rows = {found[2]: shapes[name][0] for name, found in blocks.items() if found[1] == prefix}
    return sum(rows.values())


def _check_stack(
    prefix: str, layers: tuple[int, ...], needed: int, available: int, folder: Path
) -> None:
    if len(layers) != needed:
        raise ConfigError(
            f"init_layers names {len(layers)} layers, but the {_stack(prefix)} of this model has "
            f"{needed} with parameters of their own: name a layer of the other model for each"
        )
    wrong = [layer for layer in layers if not 0 <= layer < available]
    if wrong and available:
        raise ConfigError(
            f"init_layers: there is no layer {wrong[0]} in {folder}, whose {_stack(prefix)} has "
            f"layers 0 to {available - 1}"
        )


def _check_windows(
    layers: tuple[int, ...], here: tuple[int | None, ...], there: tuple[int | None, ...]
) -> None:
    for number, layer in enumerate(layers):
        ours, theirs = here[number % len(here)], there[layer % len(there)]
        if ours != theirs:
            raise ConfigError(
                f"init_layers: layer {layer} there has {_window(theirs)} and would become layer "
                f"{number} here, which has {_window(ours)}: choose layers whose windows come in "
                f"the order of model.windows = {here}"
            )


def _window(window: int | None) -> str:
    return "global attention" if window is None else f"a window of {window}"


def _stack(prefix: str) -> str:
    return prefix.removesuffix(".stack.group.")
