"""The names and layouts of Flax's arrays in terms of PyTorch's tensors.

The path of an array in a Flax checkpoint, joined by ".", is the name of PyTorch's tensor except for
its last part: a `kernel`, a norm's `scale` and a table's `embedding` become `weight`. Flax's
kernels have inputs before outputs; in PyTorch the order is reversed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.errors import DataError
from jaxformer.hub.weights.layouts import Shape
from jaxformer.hub.weights.tensors import Tensor, Tensors
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.nn.config import MOST_LAYERS

_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}
"""Number of axes of a kernel -> the order of these axes in PyTorch."""
_SCANNED = re.compile(r"(Scan|Flax)[A-Z]\w*")
"""The key that replaces layer numbers if layers are stacked along a leading axis."""
_TABLE = "embedding"
_WEIGHT_NORM = {
    "parametrizations.weight.original0": "weight_g",
    "parametrizations.weight.original1": "weight_v",
}
"""Tensors of a kernel with weight norm -> their names in Flax."""


class View(NamedTuple):
    """A PyTorch tensor as a view of an array in a Flax checkpoint."""

    source: str
    """The path of the array, joined by "."."""
    row: tuple[int, ...]
    """The layer in an array of stacked layers, or ()."""
    axes: tuple[int, ...]
    """The order of the axes; () if unchanged."""

    def described(self, array: Tensor) -> Tensor:
        """Returns the shape and dtype of the tensor from those of the array."""
        kept = array.shape[len(self.row) :]
        return array._replace(shape=tuple(kept[axis] for axis in self.axes) or kept)

    def read(self, array: np.ndarray) -> np.ndarray:
        """Returns the tensor in an array."""
        return array[self.row].transpose(self.axes) if self.axes else array[self.row]

    def write(self, tensor: np.ndarray) -> np.ndarray:
        """Returns the array, or its row, that stores a tensor."""
        return tensor.transpose(np.argsort(self.axes)) if self.axes else tensor


def views_of(name: str, shape: Shape) -> dict[str, View]:
    """Returns PyTorch's tensors in an array with this path: one, or one for each layer."""
    *modules, last = name.split(".")
    stacked = [number for number, key in enumerate(modules) if _SCANNED.fullmatch(key)]
    if any(size > MOST_LAYERS for size in shape[: len(stacked)]):
        raise DataError(f"{name.replace('.', '/')}: {list(shape)}: too many layers")
    rows = np.ndindex(shape[: len(stacked)])
    axes = _AXES.get(len(shape) - len(stacked), ()) if last == "kernel" else ()
    found = {}
    for row in rows:
        for place, number in zip(stacked, row, strict=False):
            modules[place] = str(number)
        found[".".join((*modules, _LEAVES.get(last, last)))] = View(name, row, axes)
    return found


def view_for(placement: Placement, norm: str) -> View:
    """Returns the view of a PyTorch tensor in a Flax checkpoint.

    `norm` is the name of a norm's scale: "scale" or "weight".
    """
    tensor = placement.tensor
    for theirs, ours in _WEIGHT_NORM.items():
        tensor = tensor.replace(theirs, ours)
    *modules, last = tensor.split(".")
    leaf = placement.places[0].parameter.rpartition(".")[2]
    if last == "weight":
        last = {"kernel": "kernel", "scale": norm}.get(leaf, _TABLE)
    axes = _AXES.get(len(placement.shape), ()) if last == "kernel" else ()
    return View(".".join((*modules, last)), (), axes)


class FlaxTensors:
    """The arrays of a Flax checkpoint as PyTorch `Tensors`, which are `views` of the arrays."""

    def __init__(
        self, source: Tensors, fixed: Mapping[str, np.ndarray], unused: Sequence[str] = ()
    ):
        """Names the tensors of `source`, and adds `fixed`, which Flax computes itself."""
        self.source = source
        self.folder = source.folder
        self.views = {}
        self._fixed = fixed
        self.unused = unused
        self.computed = frozenset(fixed)
        self.tensors = {name: Tensor(x.shape, x.dtype) for name, x in fixed.items()}
        for own, tensor in source.tensors.items():
            for name, view in views_of(own, tensor.shape).items():
                if name in self.views:
                    both = " and ".join(x.replace(".", "/") for x in (self.views[name].source, own))
                    raise DataError(f"{self.folder}: {both} are both arrays for {name}")
                self.views[name] = view
                self.tensors[name] = view.described(tensor)

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor, as a view of its file if it is stored."""
        if name not in self.views:
            return self._fixed[name]
        return self.views[name].read(self.source.read(self.views[name].source))
