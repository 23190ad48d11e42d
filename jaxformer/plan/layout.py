"""How arrays lie in the memory of a chip.

A TPU holds them in tiles of 8 x 128 numbers: the last axis of an array's layout is padded to 128
numbers and the one before it to 8, or to 1, 2 or 4 where it has no more. Which axes those are is
the compiler's choice, except for what a kernel reads or writes. So heads of 64 numbers may take
twice the memory that their shape says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar, Protocol

import jax

from jaxformer.distributed.chips import Chip
from jaxformer.distributed.compiler_options import has_sparse_cores
from jaxformer.functional.placement import mesh_axes
from jaxformer.plan.program import SAME, Program, Value
from jaxformer.training.logging.report import bytes_per_device, item_bytes

LANES, SUBLANES = 128, 8
# The same numbers in the same places.
_UNMOVED = SAME | {"transpose"}


class Layout(Protocol):
    """What the memory of a program depends on besides the program."""

    fuses_products: bool
    """Whether products compute elementwise operands on the way and apply what follows them."""
    writes_narrow: bool
    """Whether what several products read in a narrower dtype is written in it."""
    sums_later: bool
    """Whether sums over devices run beside what follows them."""
    makes_gradients_last: bool
    """Whether the products that make kernels' gradients wait for the end of a layer, to run beside
    what is sent then; where sums run beside the rest, those of small operands do in any case."""
    on_chip: int
    """Bytes beside the main memory, where the compiler puts what is read soon."""

    def bytes(self, value: Value) -> int:
        """The memory of an array inside a program."""

    def bytes_of_tree(self, tree: Any) -> int:
        """The memory of a device's parts of the arrays that a program is given."""

    def to_gather(self, stack: Value) -> tuple[int, ...] | None:
        """The axes of layers' parameters `[L, ...]`, in the order in which they lie to be gathered.

        None: as they are.
        """


@dataclass(frozen=True)
class TiledLayout(Layout):
    """That of TPUs."""

    on_chip: int
    sparse_cores: bool
    """Which send, while the other cores compute."""
    writes_narrow: bool = False
    """As programs for a TPU7x do with the gradients of logits."""
    fuses_products: ClassVar[bool] = True

    @property
    def sums_later(self):
        """Whether sums over devices run beside what follows them."""
        # A TPU v4, whose programs have no memory on the chip, computes in the order of the program.
        return self.on_chip > 0

    @property
    def makes_gradients_last(self):
        """Whether the products that make kernels' gradients wait for the end of a layer."""
        return self.sums_later and not self.sparse_cores

    def bytes(self, value):
        shape = value.shape
        if value.in_rows:
            size = tiled_size(shape)
        elif len(shape) == 3:
            # Often a kernel [D, N, H] or its gradient, which products read and write row by row.
            size = shape[0] * compact_size(shape[1:])
        else:
            size = compact_size(shape)
        return size * value.dtype.itemsize

    def bytes_of_tree(self, tree):
        return sum(
            compact_size(leaf.sharding.shard_shape(leaf.shape)) * item_bytes(leaf)
            for leaf in jax.tree.leaves(tree)
        )

    def to_gather(self, stack):
        # Without SparseCores, whole tiles are gathered along any axis, parts of tiles along lanes.
        if self.sparse_cores:
            return None
        for axis, entry in enumerate(getattr(stack.sharding, "spec", ())):
            if mesh_axes(entry) and stack.shape[axis] % SUBLANES:
                rest = (*stack.shape[:axis], *stack.shape[axis + 1 :])
                return stack.shape if stack.shape[-1] >= LANES else (*rest, stack.shape[axis])
        return None


@dataclass(frozen=True)
class PlainLayout(Layout):
    """That of GPUs: without padding; cuBLAS reads and writes whole arrays."""

    fuses_products: ClassVar[bool] = False
    writes_narrow: ClassVar[bool] = False
    sums_later: ClassVar[bool] = False
    makes_gradients_last: ClassVar[bool] = False
    on_chip: ClassVar[int] = 0

    def bytes(self, value):
        return value.bytes

    def bytes_of_tree(self, tree):
        return bytes_per_device(tree)

    def to_gather(self, stack):
        del stack


def layout_of(chip: Chip) -> Layout:
    """How arrays lie in the memory of a chip."""
    if chip.kind == "gpu":
        return PlainLayout()
    on_chip = chip.vector_memory.value if chip.vector_memory else 0
    return TiledLayout(
        on_chip=int(on_chip),
        sparse_cores=has_sparse_cores(chip.device_kind),
        writes_narrow=chip.device_kind == "TPU7x",
    )


def tiled_size(shape: Sequence[int]) -> int:
    """The numbers for which an array has room, with its axes in the order of its shape.

    Args:
        shape: Its axes.

    Returns:
        The product of the axes, of which the last two are padded.
    """
    if len(shape) < 2:
        return math.prod(shape)
    *rest, rows, lanes = shape
    sublanes = min(SUBLANES, 1 << max(rows - 1, 0).bit_length())
    return math.prod(rest) * -(-rows // sublanes) * sublanes * -(-lanes // LANES) * LANES


def compact_size(shape: Sequence[int]) -> int:
    """The same, with the axes in the order that needs least, as a program's arguments lie.

    Args:
        shape: Its axes.

    Returns:
        The least `tiled_size`.
    """
    pairs = permutations(range(len(shape)), 2)
    return min((tiled_size(_with_last(shape, pair)) for pair in pairs), default=math.prod(shape))


def mark_kernels(program: Program) -> None:
    """Marks what kernels read and write, which lies as its shape says, also under other names."""
    for op in reversed(program.operations):
        named = op.name in _UNMOVED and any(value.in_rows for value in op.results)
        if op.name == "pallas_call" or named:
            _mark(op.operands)
    for op in program.operations:
        named = op.name in _UNMOVED and any(value.in_rows for value in op.operands)
        if op.name == "pallas_call" or named:
            _mark(op.results)


def _mark(values: list[Value]) -> None:
    for value in values:
        value.in_rows = True


def _with_last(shape: Sequence[int], pair: tuple[int, int]) -> tuple[int, ...]:
    """A shape with two of its axes last."""
    return *(n for k, n in enumerate(shape) if k not in pair), *(shape[k] for k in pair)
