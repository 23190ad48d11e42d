"""Array layouts in the memory of a chip.

A TPU stores arrays in tiles of 8 x 128 elements: the last axis of a layout is padded to a multiple
of 128, and the second to last to a multiple of 8, or to 1, 2 or 4. The compiler chooses the order
of the axes, except for the operands and results of kernels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import jax

from jaxformer.distributed.chips import Chip
from jaxformer.distributed.compiler_options import has_sparse_cores
from jaxformer.plan.program import Value

LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class Layout:
    """How a chip stores the arrays of a program."""

    tiled: bool
    """Whether arrays are padded to tiles and matrix products are fused with elementwise operations,
    as on TPUs.
    """
    on_chip: int = 0
    """Bytes of on-chip memory, where the compiler places short-lived arrays."""
    sparse_cores: bool = False
    """Whether SparseCores run collectives, so that gradients are not fused with reductions."""

    def bytes(self, value: Value) -> int:
        """Returns the bytes of an array inside a program."""
        if value.on_host:
            return 0
        shape = value.shape
        if not self.tiled:
            return value.bytes
        if value.row_major:
            size = tiled_size(shape)
        elif len(shape) == 3:
            # Often a kernel [D, N, H] or its gradient, which matrix products access row by row.
            size = shape[0] * compact_size(shape[1:])
        else:
            size = compact_size(shape)
        return size * value.dtype.itemsize

    def bytes_of_tree(self, tree: Any) -> int:
        """Returns the bytes of one device's shards of a program's arguments."""
        size = compact_size if self.tiled else math.prod
        return sum(
            size(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(tree)
        )


def layout_of(chip: Chip) -> Layout:
    """Returns the layout rules of a chip."""
    if chip.kind == "gpu":
        return Layout(tiled=False)
    on_chip = chip.vector_memory.value if chip.vector_memory else 0
    return Layout(True, int(on_chip), has_sparse_cores(chip.device_kind))


def tiled_size(shape: Sequence[int]) -> int:
    """Returns the padded size of an array in row-major layout."""
    if len(shape) < 2:
        return math.prod(shape)
    *rest, rows, lanes = shape
    sublanes = min(SUBLANES, 1 << max(rows - 1, 0).bit_length())
    return math.prod(rest) * -(-rows // sublanes) * sublanes * -(-lanes // LANES) * LANES


def compact_size(shape: Sequence[int]) -> int:
    """Returns the smallest padded size over all orders of the axes."""
    sizes = []
    for last in permutations(range(len(shape)), 2):
        rest = [size for axis, size in enumerate(shape) if axis not in last]
        sizes.append(tiled_size([*rest, *(shape[axis] for axis in last)]))
    return min(sizes, default=math.prod(shape))
