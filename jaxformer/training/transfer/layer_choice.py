"""Initializes a shallower model from selected layers of a deeper one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.io.staging import name_of
from jaxformer.models.parameters import StackPath, stack_path
from jaxformer.pretrained.checkpoint import Checkpoint

Shapes = Mapping[str, tuple[int, ...]]
Kinds = tuple[tuple[int | None, bool], ...]
"""The window of each layer of a group, and whether it applies rotary embeddings."""


class LayerRow(NamedTuple):
    """One layer of a stacked parameter."""

    name: str
    index: int
    """The row of its leading axis."""


@dataclass(frozen=True)
class Sources:
    """The source arrays of another run for the parameters of this one, by this run's names."""

    shapes: dict[str, tuple[int, ...]]
    """The shapes of the resulting parameters."""
    rows: dict[str, tuple[LayerRow, ...]]
    """The source layers of each stacked parameter; other parameters are taken unchanged."""

    def read_for(self, name: str) -> tuple[str, ...]:
        """Returns the names of the source arrays of a parameter."""
        return tuple(row.name for row in self.rows[name]) if name in self.rows else (name,)

    def array(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Builds a parameter from its source arrays."""
        if name not in self.rows:
            return arrays[name]
        return np.stack([arrays[row.name][row.index] for row in self.rows[name]])


def chosen_layers(
    here: Shapes, saved: Checkpoint, layers: tuple[int, ...], kinds: Kinds
) -> Sources:
    """Returns the sources with which layer i of this model is layer `layers[i]` of another."""
    # If layers of several kinds alternate (windowed and global ones), a layer must become one of
    # the same kind. Layers that share parameters count once.
    blocks, there = _stacked(here), _stacked(saved.shapes)
    for stack in dict.fromkeys(path.stack for path in blocks.values()):
        available = _depth(stack, saved.shapes, there)
        _check_stack(stack, layers, _depth(stack, here, blocks), available, name_of(saved.folder))
    _check_kinds(layers, kinds, saved.model.layer_kinds)
    group = len(saved.model.layer_kinds)
    rows = {}
    for name, path in blocks.items():
        chosen = layers[path.block :: len(kinds)]
        sources = tuple(
            LayerRow(str(path._replace(block=layer % group)), layer // group) for layer in chosen
        )
        if all(row.name in saved.shapes for row in sources):
            rows[name] = sources
    replaced = {(blocks[name].stack, blocks[name].rest) for name in rows}
    others = {
        name: shape
        for name, shape in saved.shapes.items()
        if name not in there or (there[name].stack, there[name].rest) not in replaced
    }
    stacked = {name: (len(r), *saved.shapes[r[0].name][1:]) for name, r in rows.items()}
    return Sources(others | stacked, rows)


def _stacked(shapes: Shapes) -> dict[str, StackPath]:
    """Returns the stacked parameters."""
    paths = {name: stack_path(name) for name in shapes}
    return {name: path for name, path in paths.items() if path is not None}


def _depth(stack: str, shapes: Shapes, paths: Mapping[str, StackPath]) -> int:
    """Returns the number of layers of a stack with separate parameters."""
    rows = {path.block: shapes[name][0] for name, path in paths.items() if path.stack == stack}
    return sum(rows.values())


def _check_stack(
    stack: str, layers: tuple[int, ...], needed: int, available: int, folder: str
) -> None:
    if len(layers) != needed:
        raise ConfigError(
            f"init_layers names {len(layers)} layers, but the {_owner(stack)} of this model has "
            f"{needed} with separate parameters: name a layer of the other model for each"
        )
    wrong = [layer for layer in layers if not 0 <= layer < available]
    if wrong and available:
        raise ConfigError(
            f"init_layers: there is no layer {wrong[0]} in {folder}, whose {_owner(stack)} has "
            f"layers 0 to {available - 1}"
        )


def _check_kinds(layers: tuple[int, ...], here: Kinds, there: Kinds) -> None:
    for number, layer in enumerate(layers):
        ours = here[number % len(here)]
        theirs = there[layer % len(there)]
        if ours != theirs:
            raise ConfigError(
                f"init_layers: layer {layer} there has {_kind(theirs)} and would become layer "
                f"{number} here, which has {_kind(ours)}: choose layers whose kinds come in the "
                f"order of model.windows = {tuple(window for window, _ in here)}"
            )


def _kind(kind: tuple[int | None, bool]) -> str:
    window, rotates = kind
    attends = "global attention" if window is None else f"a window of {window}"
    return attends if rotates else f"{attends} without positions"


def _owner(stack: str) -> str:
    return stack.removesuffix(".stack.group")
