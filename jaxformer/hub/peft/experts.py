"""PEFT's factors of experts: one pair for the parameter with the kernels of all experts.

A is `[E r, inputs]`, expert by expert. B is `[outputs, r E]`, in which the experts vary fastest.
In files they have the name of the module, `.experts`; if both of its parameters have factors, those
of the first are in `.base_layer`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.hub.weights.layouts import Slot
from jaxformer.hub.weights.views.fused_experts import FUSED
from jaxformer.hub.weights.weight_map import Placement

_TENSOR = re.compile(r"(.*\.experts)(?:\.\d+\.[^.]+\.weight|\.[a-z_]+)")
_WRAPPER = ".base_layer"
_ORDER = [kernel for kernels in FUSED.values() for kernel in kernels]


class Pair(NamedTuple):
    """The factors of the kernels of all experts."""

    a: np.ndarray
    """`[E, r, inputs]`."""
    b: np.ndarray
    """`[E, outputs, r]`."""

    @classmethod
    def of_file(cls, a: np.ndarray, b: np.ndarray, num: int) -> "Pair":
        """Returns the factors of `num` experts from the matrices of a file."""
        rank = len(a) // num
        return cls(
            a.reshape(num, rank, a.shape[1]), b.reshape(len(b), rank, num).transpose(2, 0, 1)
        )

    @property
    def of_all(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the matrices of a file."""
        _, outputs, rank = self.b.shape
        a = self.a.reshape(-1, self.a.shape[2])
        b = self.b.transpose(1, 2, 0).reshape(outputs, rank * len(self.b))
        return np.ascontiguousarray(a), np.ascontiguousarray(b)


def parameter_of(module: str, targeted: Sequence[str]) -> str | None:
    """Returns the parameter of experts whose factors have the name `module` in a file, or None.

    `targeted` are the suffixes in `target_parameters`.
    """
    path = module.replace(_WRAPPER, "")
    if path.rpartition(".")[2] != "experts":
        return None
    names = [f"{path}.{name}" for name in FUSED]
    names = [name for name in names if any(f".{name}".endswith(f".{end}") for end in targeted)]
    depth = module.count(_WRAPPER)
    return names[-1 - depth] if depth < len(names) else None


def is_parameter(name: str) -> bool:
    """Whether a name is a parameter of experts."""
    return name.endswith(tuple(f".experts.{fused}" for fused in FUSED))


def module_of(parameter: str, adapted: Collection[str]) -> str:
    """Inverts `parameter_of`; `adapted` are all parameters with factors."""
    path, _, name = parameter.rpartition(".")
    order = list(FUSED)
    outer = order[order.index(name) + 1 :]
    return path + _WRAPPER * sum(f"{path}.{other}" in adapted for other in outer)


def parameter_with(placement: Placement) -> str | None:
    """Returns the parameter of transformers 5 that contains an expert's kernel.

    Returns None for other tensors.
    """
    match = _TENSOR.fullmatch(placement.tensor)
    kernel = bool(placement.slots) and placement.slots[0].inputs > 0
    if match is None or not kernel:
        return None
    own = _kernel(placement.places[0].parameter)
    return next(f"{match[1]}.{name}" for name, parts in FUSED.items() if own in parts)


def joined(
    placements: Sequence[Placement], factors: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Pair:
    """Returns the factors of a parameter, joined from those of its kernels.

    A has the rows of all kernels with factors, and B is zero outside of their blocks. `placements`
    are the tensors with the kernels of all experts, and `factors` maps the name of a kernel to A
    `[*layers, E, inputs, r]` and B `[*layers, E, r, outputs]`.
    """
    found: dict[str, list[tuple[np.ndarray, ...]]] = {}
    widths: dict[str, int] = {}
    for placement in placements:
        for (name, row), slot in zip(placement.places, placement.slots, strict=True):
            widths[name] = slot.shape[-1]
            if name in factors:
                sides = (np.asarray(side[row], np.float32) for side in factors[name][:2])
                found.setdefault(name, []).append(
                    tuple(side.reshape(-1, *side.shape[-2:]) for side in sides)
                )
    order = sorted(widths, key=lambda name: _ORDER.index(_kernel(name)))
    columns, rows = [], []
    for name in filter(found.__contains__, order):
        a, b = (np.concatenate(side) for side in zip(*found[name], strict=True))
        blocks = [
            b if other == name else np.zeros((*b.shape[:2], widths[other]), b.dtype)
            for other in order
        ]
        columns.append(a.swapaxes(1, 2))
        rows.append(_concatenated(blocks, placements[0]).swapaxes(1, 2))
    return Pair(np.concatenate(columns, axis=1), np.concatenate(rows, axis=2))


def _concatenated(blocks: Sequence[np.ndarray], placement: Placement) -> np.ndarray:
    """Concatenates the outputs of several kernels, `[E, r, outputs]`."""
    if len(placement.places) == 1:  # separate in files; transformers concatenates them
        return np.concatenate(blocks, axis=-1)
    return placement.layout.write(blocks, [Slot(block.shape, 1) for block in blocks])


def _kernel(parameter: str) -> str:
    return parameter.split(".")[-2]
