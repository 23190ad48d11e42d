"""How arrays lie in the memory of a chip.

A TPU holds them in tiles of 8 x 128 numbers: the last axis of a layout is padded to a multiple of
128, and the one before it to a multiple of 8, or to 1, 2 or 4. The compiler chooses the order of
the axes, except for what a kernel reads or writes.
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
from jaxformer.training.logging.report import item_bytes

LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class Layout:
    """How a chip stores the arrays of a program."""

    tiled: bool
    """Whether arrays are padded to tiles and products are fused with elementwise operations: on
    TPUs."""
    on_chip: int = 0
    """Bytes of the memory on the chip, where the compiler puts short-lived arrays."""
    sparse_cores: bool = False
    """Whether SparseCores send, so that gradients are not computed together with their sums."""

    def bytes(self, value: Value) -> int:
        """The memory of an array inside a program."""
        if value.on_host:
            return 0
        shape = value.shape
        if not self.tiled:
            return value.bytes
        if value.row_major:
            size = tiled_size(shape)
        elif len(shape) == 3:
            # Often a kernel [D, N, H] or its gradient, which products read and write row by row.
            size = shape[0] * compact_size(shape[1:])
        else:
            size = compact_size(shape)
        return size * value.dtype.itemsize

    def bytes_of_tree(self, tree: Any) -> int:
        """The memory of a device's parts of the arguments of a program."""
        size = compact_size if self.tiled else math.prod
        return sum(
            size(leaf.sharding.shard_shape(leaf.shape)) * item_bytes(leaf)
            for leaf in jax.tree.leaves(tree)
        )


def layout_of(chip: Chip) -> Layout:
    """The layout of arrays in the memory of a chip."""
    if chip.kind == "gpu":
        return Layout(tiled=False)
    on_chip = chip.vector_memory.value if chip.vector_memory else 0
    return Layout(True, int(on_chip), has_sparse_cores(chip.device_kind))


def tiled_size(shape: Sequence[int]) -> int:
    """The padded size of an array whose axes are in the order of its shape."""
    if len(shape) < 2:
        return math.prod(shape)
    *rest, rows, lanes = shape
    sublanes = min(SUBLANES, 1 << max(rows - 1, 0).bit_length())
    return math.prod(rest) * -(-rows // sublanes) * sublanes * -(-lanes // LANES) * LANES


def compact_size(shape: Sequence[int]) -> int:
    """The padded size with the axes in the order that needs least."""
    sizes = []
    for last in permutations(range(len(shape)), 2):
        rest = [size for axis, size in enumerate(shape) if axis not in last]
        sizes.append(tiled_size([*rest, *(shape[axis] for axis in last)]))
    return min(sizes, default=math.prod(shape))
