"""Weight maps: the parameters in each tensor of a file, for reading and writing."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.hub.weights.layouts import Constant, Layout, Shape, Single, Slot, default_layout
from jaxformer.models.parameters import AbstractModel, group_sizes, stack_path

_LEAVES = {"kernel": "weight", "scale": "weight", "table": "weight", "bias": "bias"}


class Place(NamedTuple):
    """A parameter, or one layer of a stacked parameter."""

    parameter: str
    row: tuple[int, ...]
    """The index along the leading axes of a parameter stored in many tensors: (layer,), or ()."""


class Placement(NamedTuple):
    """A tensor and the parameters in it."""

    tensor: str
    places: tuple[Place, ...]
    slots: tuple[Slot, ...]
    layout: Layout

    @property
    def shape(self) -> Shape:
        """The shape of the tensor."""
        return self.layout.shape(self.slots)


class Fused(NamedTuple):
    """Several of our modules whose kernels form one tensor, and whose biases form another."""

    modules: tuple[str, ...]
    tensor: str
    layout: Layout
    separator: str = "."
    """The separator before "weight" and "bias": "_" in PyTorch's `MultiheadAttention`."""
    leaves: Mapping[str, str] = _LEAVES
    """Our last name of a parameter -> the name in the file."""


@dataclass(frozen=True)
class WeightMap:
    """The names and layouts of the tensors of a model.

    A key of `names` is the path of a module, with "*" for the index in a group of layers. Its value
    is the name in the file, with "{}" for the layer number, and another "{}" for the index along
    the next axis (such as a head). The module's kernel, scale or table is the tensor
    "<name>.weight", and its bias "<name>.bias". A key may also be the path of a parameter; then its
    value is the name of the tensor. With a number instead of "*", a key names one block of the
    groups, and "{}" is the number of the group (ALBERT).
    """

    names: Mapping[str, str]
    fused: Sequence[Fused] = ()
    layouts: Mapping[str, Single] = field(default_factory=dict)
    """Pattern of parameters -> layout, if it differs from `default_layout`."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """Duplicate tensor -> the tensor that is read instead."""
    constants: Mapping[str, Constant] = field(default_factory=dict)
    """Computed (not learned) tensor -> its values."""

    def within(self, part: str, renamed: Callable[[str], str]) -> "WeightMap":
        """Returns the map of this model as a part ("encoder") of another, with renamed tensors."""
        return WeightMap(
            {f"{part}.{path}": renamed(tensor) for path, tensor in self.names.items()},
            [
                each._replace(
                    modules=tuple(f"{part}.{module}" for module in each.modules),
                    tensor=renamed(each.tensor),
                )
                for each in self.fused
            ],
            {f"{part}.{pattern}": layout for pattern, layout in self.layouts.items()},
            {renamed(twin): renamed(other) for twin, other in self.twins.items()},
            {renamed(tensor): constant for tensor, constant in self.constants.items()},
        )

    def __or__(self, other: "WeightMap") -> "WeightMap":
        """Returns the map of a model that has the modules of both."""
        return WeightMap(
            {**self.names, **other.names},
            [*self.fused, *other.fused],
            {**self.layouts, **other.layouts},
            {**self.twins, **other.twins},
            {**self.constants, **other.constants},
        )

    def placements(self, abstract_model: AbstractModel) -> list[Placement]:
        """Returns the tensors of a model's file."""
        placed: dict[str, Placement] = {}
        for parameter in abstract_model.shapes:
            for placement in self._of(parameter, abstract_model):
                placed.setdefault(placement.tensor, placement)
        for twin, other in self.twins.items():
            if other in placed:
                placed[twin] = placed[other]._replace(tensor=twin)
        for tensor, constant in self.constants.items():
            placed[tensor] = Placement(tensor, (), (), constant)
        return list(placed.values())

    def _of(self, parameter: str, abstract_model: AbstractModel) -> list[Placement]:
        """Returns the tensors of a parameter: one, or one for each layer."""
        group = stack_path(parameter)
        numbered = group is not None and self._has(parameter)
        path = f"{group.stack}.*.{group.rest}" if group and not numbered else parameter
        parts, tensor, layout = self._find(path)
        if group:
            parts = [part.replace(".group.*.", f".group.{group.block}.") for part in parts]
        # The tensors of a shared layer may lack a number (ALBERT).
        depth = max(tensor.count("{}"), int(group is not None))
        slots = tuple(_slot(part, abstract_model, depth) for part in parts)
        first, step = 0, 1
        if group and not numbered:
            first = group.block
            step = group_sizes(abstract_model.shapes)[group.stack]
        return [
            Placement(
                tensor.format(*(first + step * layer for layer in row[:1]), *row[1:]),
                tuple(Place(part, row) for part in parts),
                slots,
                layout,
            )
            for row in np.ndindex(abstract_model.shapes[parameter].shape[:depth])
        ]

    def _has(self, path: str) -> bool:
        """Whether a parameter or its module has an entry."""
        return path in self.names or path.rpartition(".")[0] in self.names

    def _find(self, path: str) -> tuple[list[str], str, Layout]:
        """Returns all parameters in the tensor of a parameter, its name, and its layout."""
        module, _, leaf = path.rpartition(".")
        for fused in self.fused if path not in self.names else ():
            if module in fused.modules:
                parts = [f"{name}.{leaf}" for name in fused.modules]
                tensor = f"{fused.tensor}{fused.separator}{fused.leaves[leaf]}"
                return parts, tensor, fused.layout
        if path in self.names:
            tensor = self.names[path]
        elif module in self.names and leaf in _LEAVES:
            tensor = f"{self.names[module]}.{_LEAVES[leaf]}"
        else:
            raise ConfigError(f"the parameter {path} has no name in files of this kind")
        kept = [x for pattern, x in self.layouts.items() if fnmatch.fnmatchcase(path, pattern)]
        return [path], tensor, (kept[0] if kept else default_layout(leaf))


def block(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """Returns the names of a stack's modules: `block("transformer", "h.{}", {"norms.0": "ln"})`."""
    return {f"{ours}.stack.group.*.{own}": f"{theirs}.{name}" for own, name in names.items()}


def attention(number: int, query: str, key: str, value: str, output: str) -> dict[str, str]:
    """Returns the names of the attention projections of a sublayer, by its number."""
    names = {"query": query, "key": key, "value": value, "output": output}
    return {f"sublayers.{number}.attention.{own}": name for own, name in names.items()}


def _slot(parameter: str, abstract_model: AbstractModel, depth: int) -> Slot:
    return Slot(
        abstract_model.shapes[parameter].shape[depth:], abstract_model.kernels.get(parameter, 0)
    )
