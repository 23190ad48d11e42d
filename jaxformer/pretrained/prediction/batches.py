"""Batches rows of any length in few shapes, to compile few programs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxformer.distributed.sharding import on_rows
from jaxformer.functional.arrays import on_mesh
from jaxformer.models.model import Model
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.reader import Arrays

_SHORTEST = 16


class Batches:
    """Computes a function of a model on rows, which are sorted by length and padded."""

    def __init__(
        self, pretrained: Pretrained, function: Callable[[Model, Arrays], Any], batch_size: int
    ):
        def compute(parameters, arrays):
            return function(pretrained.abstract_model.module(parameters), on_rows(arrays))

        self._pretrained = pretrained
        self._batch_size = batch_size
        self._compute = jax.jit(compute)

    def __call__(
        self,
        rows: Sequence[Any],
        sizes: Sequence[int],
        arrays: Callable[[Sequence[Any], int], Arrays],
        longest: int,
    ) -> list[tuple[Any, int]]:
        """Returns the result of each row, in order, with the row's padded length."""
        order = np.argsort(sizes, kind="stable")
        found: list[Any] = [None] * len(rows)
        count = min(self._batch_size, 1 << max(len(rows) - 1, 0).bit_length())
        for start in range(0, len(rows), count):
            chosen = order[start : start + count]
            length = bucket(sizes[chosen[-1]], longest)
            batch = [rows[n] for n in chosen] + [rows[chosen[-1]]] * (count - len(chosen))
            with on_mesh(self._pretrained.mesh):
                result = self._compute(self._pretrained.parameters, arrays(batch, length))
            result = jax.device_get(result)
            for row, n in enumerate(chosen):
                found[n] = jax.tree.map(lambda x, row=row: x[row], result), length
        return found


def bucket(size: int, longest: int) -> int:
    """Returns the padded length for rows of a size: 16, 32, 48, 64, 96, 128, 192, ..."""
    length = _SHORTEST
    while length < size:
        halfway = length + length // 2
        length = halfway if size <= halfway and length > _SHORTEST else 2 * length
    return max(min(length, longest), size)
