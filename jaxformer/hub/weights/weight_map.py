"""The names of a system's tensors beside ours: one table, read in both directions."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.hub.weights.layouts import Layout, Shape, Single, Slot, usual
from jaxformer.models.parameters import AbstractModel, group_sizes, stack_path

_LEAVES = {"kernel": "weight", "scale": "weight", "table": "weight", "bias": "bias"}


class Place(NamedTuple):
    """Where a parameter, or one layer of a stacked one, comes to lie."""

    parameter: str
    row: tuple[int, ...]
    """Along the leading axes of a parameter that lies in many tensors: (layer,); () for others."""


class Placement(NamedTuple):
    """One tensor and what it holds."""

    tensor: str
    places: tuple[Place, ...]
    slots: tuple[Slot, ...]
    layout: Layout

    @property
    def shape(self) -> Shape:
        """The shape that the tensor must have."""
        return self.layout.shape(self.slots)


class Fused(NamedTuple):
    """Several modules of ours whose kernels, and biases, are one tensor each."""

    modules: tuple[str, ...]
    tensor: str
    layout: Layout
    separator: str = "."
    """What stands before "weight" and "bias": "_" in PyTorch's MultiheadAttention."""


@dataclass(frozen=True)
class WeightMap:
    """What our parameters are called in a file.

    Our modules are named by their paths with "*" for the number in a group of layers; "{}" in a
    tensor's name stands for the number of the layer, another one for a number along the next axis
    (of a head, say). A module's kernel, scale or table is called "<name>.weight" there and its bias
    "<name>.bias". A key that is a whole parameter's path goes before, and its value is the whole
    name.
    """

    names: Mapping[str, str]
    fused: Sequence[Fused] = ()
    layouts: Mapping[str, Single] = field(default_factory=dict)
    """Pattern of our parameters -> how it is kept, where that is not the usual way."""

    def placements(self, abstract_model: AbstractModel) -> list[Placement]:
        """Every tensor of a model's file.

        Raises:
            ConfigError: A parameter of the model has no name in such files.
        """
        placed: dict[str, Placement] = {}
        for parameter in abstract_model.shapes:
            for placement in self._of(parameter, abstract_model):
                placed.setdefault(placement.tensor, placement)
        return list(placed.values())

    def _of(self, parameter: str, abstract_model: AbstractModel) -> list[Placement]:
        """The tensors that hold a parameter: one, or one for each of its layers."""
        group = stack_path(parameter)
        path = f"{group.stack}.*.{group.rest}" if group else parameter
        parts, tensor, layout = self._find(path)
        if group:
            parts = [part.replace(".group.*.", f".group.{group.block}.") for part in parts]
        # A stack's only layer may do without a number (ALBERT, which shares it).
        depth = max(tensor.count("{}"), int(group is not None))
        slots = tuple(_slot(part, abstract_model, depth) for part in parts)
        first, step = 0, 1
        if group:
            first, step = group.block, group_sizes(abstract_model.shapes)[group.stack]
        return [
            Placement(
                tensor.format(*(first + step * layer for layer in row[:1]), *row[1:]),
                tuple(Place(part, row) for part in parts),
                slots,
                layout,
            )
            for row in np.ndindex(abstract_model.shapes[parameter].shape[:depth])
        ]

    def _find(self, path: str) -> tuple[list[str], str, Layout]:
        """All parameters in the tensor that holds one, the tensor's name, and how it is kept."""
        module, _, leaf = path.rpartition(".")
        for fused in self.fused:
            if module in fused.modules:
                parts = [f"{name}.{leaf}" for name in fused.modules]
                tensor = f"{fused.tensor}{fused.separator}{_LEAVES[leaf]}"
                return parts, tensor, fused.layout
        if path in self.names:
            tensor = self.names[path]
        elif module in self.names and leaf in _LEAVES:
            tensor = f"{self.names[module]}.{_LEAVES[leaf]}"
        else:
            raise ConfigError(f"the parameter {path} has no place in files of this kind")
        kept = [x for pattern, x in self.layouts.items() if fnmatch.fnmatchcase(path, pattern)]
        return [path], tensor, (kept[0] if kept else usual(leaf))


def block(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """Names of the modules of a stack's blocks: `block("transformer", "h.{}", {"norms.0": "ln"})`.

    Args:
        ours: The transformer that has the stack: "transformer", "encoder" or "decoder".
        theirs: What comes before the names there, with "{}" for the number of the layer.
        names: Our path within a block -> theirs.
    """
    return {f"{ours}.stack.group.*.{own}": f"{theirs}.{name}" for own, name in names.items()}


def attention(number: int, query: str, key: str, value: str, output: str) -> dict[str, str]:
    """Names of the projections of the sublayer with this number."""
    names = {"query": query, "key": key, "value": value, "output": output}
    return {f"sublayers.{number}.attention.{own}": name for own, name in names.items()}


def _slot(parameter: str, abstract_model: AbstractModel, depth: int) -> Slot:
    return Slot(
        abstract_model.shapes[parameter].shape[depth:], abstract_model.kernels.get(parameter, 0)
    )
