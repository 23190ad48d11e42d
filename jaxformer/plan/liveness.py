"""The peak memory of a program: which of its arrays exist at the same time.

An array occupies memory if its operation is one that XLA does not fuse with its consumers: a matrix
product, a kernel, a loop, a reduction or a collective. Elementwise operations are computed where
their result is read, or are fused into the product before them. An array lives from its operation
to the last operation that depends on it through elementwise operations.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import compress
from math import prod
from typing import NamedTuple

from jaxformer.plan.layout import Layout
from jaxformer.plan.program import LOOPS, Operation, Program, Value

ALIASES = {
    "name", "reshape", "squeeze", "expand_dims", "copy", "optimization_barrier", "reshard",
    "stop_gradient", "pvary",
}  # fmt: skip
"""Operations whose result aliases their operand."""
ELEMENTWISE = {
    "abs", "add", "add_any", "and", "bitcast_convert_type", "broadcast_in_dim", "cbrt", "ceil",
    "clamp", "clz", "concatenate", "convert_element_type", "copy", "cos", "div", "dynamic_slice",
    "eq", "erf", "erf_inv", "exp", "exp2", "expand_dims", "expm1", "floor", "ge", "gt", "imag",
    "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "name", "ne", "neg", "nextafter", "not", "one_minus_square", "or", "pad", "polynomial",
    "population_count", "pow", "pvary", "random_bits", "random_unwrap", "random_wrap", "real",
    "reduce_precision", "rem", "reshape", "rev", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "slice", "split", "sqrt",
    "square", "squeeze", "stack", "stop_gradient", "sub", "tan", "tanh", "threefry2x32", "tile",
    "transpose", "unstack", "xor",
}  # fmt: skip
"""Operations that XLA fuses with their consumers or their producer."""
NOT_FUSED = {"pallas_call", "gather", "scatter-add", "sort", "custom_call", "top_k"}
"""Operations that XLA never fuses with their consumers."""
FUSES_OPERANDS = {"dot_general", "conv_general_dilated", "dynamic_update_slice", "scatter-add"}
"""Operations that XLA fuses with the producers of their operands."""
_LONG_LIVED = {"saved by the loop", "loop state"}
"""Operations whose results live too long to be kept in on-chip memory."""


class LiveBuffer(NamedTuple):
    """An array in memory."""

    value: Value
    maker: str
    """The operation that produces it."""
    bytes: int
    """Bytes on one device."""


@dataclass
class Peak:
    """The state of memory at its peak."""

    bytes: int
    """Bytes in addition to the arguments."""
    arrays: list[LiveBuffer] = field(default_factory=list)
    """The live arrays in main memory."""
    on_chip: int = 0
    """Bytes of the live arrays in on-chip memory."""


def peak(program: Program, layout: Layout) -> Peak:
    """Returns the peak memory of a program in addition to its inputs and outputs."""
    walk = _Walk(program, layout, in_loop=False)
    walk.run([])
    return walk.highest()


class _Walk:
    """The lifetimes of the arrays of a program. The n-th operation runs at time 2 n."""

    def __init__(self, program: Program, layout: Layout, *, in_loop: bool):
        self.end = 2 * len(program.operations)
        self.program = program
        self.layout = layout
        self.in_loop = in_loop
        self.readers: dict[Value | None, list[Operation]] = defaultdict(list)
        for op in program.operations:
            for value in op.operands:
                self.readers[value].append(op)
        self.uses = Counter({value: len(ops) for value, ops in self.readers.items()})
        self.uses.update(program.outputs)
        self.roots: dict[Value, frozenset[Value]] = {}  # the arrays that a value is computed from
        self.same: dict[Value, Value] = {}  # another name -> the array
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        self.maker: dict[Value, str] = {}
        self.open: set[Value] = set()  # arrays whose only reader may be fused into their producer
        self.during: dict[int, Peak] = {}  # the peak memory inside of loops
        self.temporary: dict[int, list[tuple[Value, str]]] = defaultdict(list)
        self.summed_late: list[Value] = []  # arrays that are summed over devices when they are read
        self.shares: list[tuple[Value, Value]] = []  # a result that may replace an array

    def run(self, owned: list[Value]) -> None:
        """Walks through a program that owns the memory of the inputs `owned`."""
        mark_row_major(self.program)
        for value in owned:
            self._make(value, 0, "loop state")
        for number, operation in enumerate(self.program.operations):
            self._operate(operation, 2 * number)
        for value in self.program.outputs:
            self._read(value, self.end)
        for value in self.summed_late:
            array = self.same.get(value, value)
            if array in self.last:
                self.temporary[self.last[array]].append((value, "sum over devices"))

    def _operate(self, op: Operation, time: int) -> None:
        if op.name == "optimization_barrier":
            self._barrier(op, time)
        elif op.name in ALIASES and (op.name != "reshard" or _moves_nothing(op)):
            self._alias(op)
        elif (op.name in ELEMENTWISE and not _skips_rows(op)) or _sums(op):
            self._fuse(op)
            self.summed_late += op.operands[:1] * _sums(op)
        elif op.name in LOOPS:
            self._loop(op, time)
        else:
            fuses = op.name.startswith(("reduce_", "arg", "cum")) or _slices(op)
            fuses = fuses or (op.name in FUSES_OPERANDS and self.layout.tiled) or op.name == "slice"
            for value in op.operands:
                self._read(value, time, whole=not fuses)
            for value in op.results:
                self._make(value, time, op.name, is_open=op.name not in NOT_FUSED)
            if op.name == "dot_general" and (parts := _scattered(op)) > 1:
                self._sum_over_rows(op, parts, time)

    def _sum_over_rows(self, op: Operation, parts: int, time: int) -> None:
        """A device's partial gradient is as large as the whole kernel until it is scattered."""
        (value,) = op.results
        whole = Value((parts, *value.shape), value.dtype, value.source)
        if self.in_loop and self._is_delayed(op, whole, parts):
            for operand in op.operands:
                self._read(operand, self.end - 1)
        self._make(whole, time, "sum over rows")
        if self.layout.on_chip:  # reductions overlap with the rest of the layer
            self.last[whole] = self.end

    def _is_delayed(self, op: Operation, whole: Value, parts: int) -> bool:
        """Whether the gradient of a kernel is delayed until the end of its layer."""
        if self.layout.on_chip and not self.layout.sparse_cores and parts <= 64:
            return True
        live = sum(self.layout.bytes(root) for root in self._roots_of(op))
        return live + self.layout.bytes(whole) <= self.layout.on_chip

    def _alias(self, op: Operation) -> None:
        (result,) = op.results
        if not op.operands:
            self.roots[result] = frozenset()
            return
        value = op.operands[0]
        array = self.same.get(value, value)
        self.roots[result] = self._roots(value)
        if not self._is_computed_late(value):
            self.same[result] = array
        if self.uses[value] > 1 or self.uses[result] > 1:
            self.open.discard(array)

    def _barrier(self, op: Operation, time: int) -> None:
        """A barrier: elementwise values are materialized, and arrays live until then."""
        for value, result in zip(op.operands, op.results, strict=True):
            self._read(value, time)
            if self._is_computed_late(value):
                self._make(result, time, "fusion")
            else:
                self.same[result] = self.same.get(value, value)
                self.roots[result] = self._roots(value)

    def _fuse(self, op: Operation) -> None:
        """An elementwise operation: fused with its consumers or into its producer."""
        roots = self._roots_of(op)
        self.roots |= dict.fromkeys(op.results, roots)
        arrays = [self.same.get(v, v) for v in op.operands if self.uses[v] == 1]
        (result, *others) = op.results
        usable = [array for array in arrays if array in self.open and self._shrinks(result, array)]
        if usable and not others and self.layout.tiled and result.shape:
            latest = max(usable, key=lambda array: self.first[array])
            if len(result.shape) >= len(latest.shape) - 2:
                self._replace(latest, result, roots - {latest})
        self.open -= set(arrays)

    def _shrinks(self, result: Value, array: Value) -> bool:
        """Whether a result, or its only consumer's result, needs no more memory than an array."""
        while self.layout.bytes(result) > self.layout.bytes(array):
            readers = self.readers[result]
            if self.uses[result] != 1 or not readers or readers[0].name not in ELEMENTWISE:
                return False
            (result, *_) = readers[0].results
        return True

    def _replace(self, array: Value, result: Value, others: frozenset[Value]) -> None:
        """Lets the operation that produces an array write a derived result instead."""
        time = self.first.pop(array)
        maker = self.maker.pop(array)
        del self.last[array]
        self.open.discard(array)
        for root in others:
            self._touch(root, time)
            if self.layout.bytes(root) == self.layout.bytes(result):
                self.shares.append((result, root))
        self.roots.pop(result)
        self._make(result, time, maker, is_open=True)
        result.source = result.source or array.source

    def _loop(self, op: Operation, time: int) -> None:
        parts = _loop_parts(op)
        for value in parts.constants:
            self._read(value, time, whole=True)
        for value in parts.state:
            self._read(value, time, whole=True, moved=True)
        peaks = []
        for body, owned in zip(op.bodies, parts.owned, strict=True):
            walk = _Walk(body, self.layout, in_loop=True)
            walk.run(owned)
            peaks.append(walk.highest())
        self.during[time] = max(peaks, key=lambda each: each.bytes)
        for number, value in enumerate(op.results):
            part = op.bodies[-1].outputs[number]
            value.row_major = part is not None and part.row_major
            self._make(value, time if number >= parts.num_state else time + 1, "saved by the loop")

    def _is_computed_late(self, value: Value) -> bool:
        """Whether a value is not materialized but computed by the operations that read it."""
        return value in self.roots and self.same.get(value, value) not in self.first

    def _roots(self, value: Value) -> frozenset[Value]:
        if value in self.roots:
            return self.roots[value]
        return frozenset((value,)) if value in self.first else frozenset()

    def _roots_of(self, op: Operation) -> frozenset[Value]:
        return frozenset().union(*(self._roots(value) for value in op.operands))

    def _make(self, value: Value, time: int, maker: str, *, is_open: bool = False) -> None:
        self.first[value] = self.last[value] = time
        self.maker[value] = maker
        if is_open and self.uses[value] == 1:
            self.open.add(value)

    def _touch(self, array: Value, time: int) -> None:
        if array in self.last:
            self.last[array] = max(self.last[array], time)

    def _read(
        self, value: Value | None, time: int, *, whole: bool = False, moved: bool = False
    ) -> None:
        """Records that an operation reads a value: `whole` as an array, `moved` to overwrite it."""
        if value is None:
            return
        self.open.discard(self.same.get(value, value))
        if whole and self._is_computed_late(value) and self.roots[value]:
            self.temporary[time].append((value, "operand"))
        for root in self._roots(value):
            self._touch(root, time - 1 if moved and self.uses[value] == 1 else time)

    def highest(self) -> Peak:
        """Returns the time of peak memory."""
        placed: set[Value] = set()
        for result, root in self.shares:
            if result not in placed and self.first.get(result) == self.last.get(root):
                self.last[root] -= 1
                placed.add(result)
        starts, ends = defaultdict(list), defaultdict(list)
        for value, start in self.first.items():
            starts[start].append(LiveBuffer(value, self.maker[value], self.layout.bytes(value)))
            ends[self.last[value] + 1].append(value)
        alive: dict[Value, LiveBuffer] = {}
        best = Peak(-1)
        for time in range(-1, self.end + 2):
            for value in ends[time]:
                alive.pop(value, None)
            alive |= {buffer.value: buffer for buffer in starts[time]}
            made = [LiveBuffer(v, maker, self.layout.bytes(v)) for v, maker in self.temporary[time]]
            here = [*alive.values(), *made]
            inner = self.during.get(time, Peak(0))
            if inner.bytes + sum(buffer.bytes for buffer in here) > best.bytes:
                kept, on_chip = self._off_chip(here, self.layout.on_chip - inner.on_chip)
                size = inner.bytes + sum(buffer.bytes for buffer in kept)
                if size > best.bytes:
                    best = Peak(size, kept + inner.arrays, on_chip + inner.on_chip)
        return best

    def _off_chip(self, arrays: list[LiveBuffer], room: int) -> tuple[list[LiveBuffer], int]:
        """Splits arrays into those in main memory and the bytes on the chip, where the largest that
        fit go first.
        """
        kept, left = [], room
        for buffer in sorted(arrays, key=lambda buffer: -buffer.bytes):
            first, last = (each.get(buffer.value, 0) for each in (self.first, self.last))
            waits = any(first < loop <= last for loop in self.during)
            waits = waits and buffer.maker != "sum over rows"
            if waits or buffer.maker in _LONG_LIVED or buffer.bytes > left:
                kept.append(buffer)
            else:
                left -= buffer.bytes
        return kept, room - left


class _LoopParts(NamedTuple):
    """The operands and results of a loop or conditional."""

    constants: list[Value | None]
    """The read-only operands."""
    state: list[Value | None]
    """The operands that may be overwritten."""
    num_state: int
    """How many of the results are state; the others are stacks."""
    owned: list[list[Value]]
    """For each body, the inputs whose memory it owns: the state."""


def _loop_parts(op: Operation) -> _LoopParts:
    """Returns the operands and results of a `scan`, `while` or `cond`."""
    params, operands = op.equation.params, op.operands
    if op.name == "scan":
        consts, carry = _scan_counts(params)
        constants = operands[:consts]
        state = operands[consts : consts + carry]
        owned = op.bodies[0].inputs[consts : consts + carry]
        return _LoopParts(constants + operands[consts + carry :], state, carry, [owned])
    if op.name == "while":
        consts = params["cond_nconsts"] + params["body_nconsts"]
        owned = [[], op.bodies[1].inputs[params["body_nconsts"] :]]
        return _LoopParts(operands[:consts], operands[consts:], len(op.results), owned)
    # A branch may overwrite an operand of the same shape with its result.
    shapes = {(value.shape, value.dtype) for value in op.results}
    moves = [v is not None and (v.shape, v.dtype) in shapes for v in operands[1:]]
    constants = [v for v, is_moved in zip(operands[1:], moves, strict=True) if not is_moved]
    return _LoopParts(
        [operands[0], *constants],
        list(compress(operands[1:], moves)),
        len(op.results),
        [list(compress(body.inputs, moves)) for body in op.bodies],
    )


def _scan_counts(params: dict) -> tuple[int, int]:
    """Returns how many operands of a `scan` are constants, and how many are state."""
    if "ft_in" in params:  # since JAX 0.12
        constants, state, _ = params["ft_in"].unpack()
        return len(constants), len(state)
    return params["num_consts"], params["num_carry"]


def mark_row_major(program: Program) -> None:
    """Marks the operands and results of kernels, including aliases, as row-major."""
    unmoved = ALIASES | {"transpose"}
    for op in reversed(program.operations):
        if op.name == "pallas_call" or (op.name in unmoved and op.results[0].row_major):
            for value in op.operands:
                value.row_major = True
    for op in program.operations:
        aliased = op.name in unmoved and any(value.row_major for value in op.operands)
        if op.name == "pallas_call" or aliased:
            for value in op.results:
                value.row_major = True


def _scattered(op: Operation) -> int:
    """Returns into how many shards the sum of a product over devices is scattered."""
    (contracted, _), _ = op.equation.params["dimension_numbers"]
    (result,) = op.results
    if op.operands[0] is None or result.sharding is None:
        return 1
    axes = (op.operands[0].axes_of(contracted) - result.unreduced) & result.axes
    return prod(result.sharding.mesh.shape[axis] for axis in axes)


def _sums(op: Operation) -> bool:
    """Whether an operation sums an array over devices."""
    return op.name == "reshard" and bool(op.operands) and bool(op.operands[0].unreduced)


def _slices(op: Operation) -> bool:
    """Whether each device slices its shard from a replicated array."""
    if op.name != "reshard" or not op.operands:
        return False
    return op.operands[0].axes < op.results[0].axes and not op.operands[0].unreduced


def _skips_rows(op: Operation) -> bool:
    """Whether a slice takes every n-th row, as for the windows of a convolution: then it is not
    fused with the product that reads it, and the backward pass reads it again.
    """
    strides = op.equation.params.get("strides") if op.name == "slice" else None
    return strides is not None and any(stride > 1 for stride in strides[:-1])


def _moves_nothing(op: Operation) -> bool:
    """Whether a change of sharding moves no data."""
    if not op.operands:
        return True
    (given,), (made,) = op.operands, op.results
    return given.automatic != made.automatic or given.shape == made.shape
