"""How much memory a program needs: which of its arrays exist at the same time.

The compiler writes an array to memory where an operation makes it that cannot be a part of another
one: a product, a kernel, a loop, a reduction, a collective. What is elementwise is computed where
it is read, from the arrays that it depends on, or is written by the product that it follows. So
memory is a matter of the former alone, from where each is made to where the last one reads it that
depends on it.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from jaxformer.plan.program import LOOPS, Operation, Program, Value
from jaxformer.plan.shardings import cut, scattered, unreduced

# Computed where they are read, or by the operation whose result they change.
_FUSED = {
    *("abs", "add", "add_any", "and", "bitcast_convert_type", "broadcast_in_dim", "cbrt", "ceil"),
    *("clamp", "concatenate", "convert_element_type", "copy", "cos", "div", "eq", "erf", "exp"),
    *("exp2", "expand_dims", "expm1", "floor", "ge", "gt", "integer_pow", "iota", "is_finite"),
    *(
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "name",
        "ne",
        "neg",
        "nextafter",
    ),
    *("not", "optimization_barrier", "or", "pad", "pow", "rem", "reshape", "rev", "round", "rsqrt"),
    *("select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin"),
    *("slice", "split", "sqrt", "square", "squeeze", "stack", "stop_gradient", "sub", "tan"),
    *("tanh", "tile", "transpose", "xor", "pvary", "erf_inv", "population_count", "clz"),
    *("reduce_precision", "real", "imag", "device_put", "threefry2x32", "random_wrap"),
    *("random_unwrap", "dynamic_slice"),
}
# The same array under another name.
_SAME = {"name", "reshape", "squeeze", "expand_dims", "copy", "optimization_barrier", "reshard"}
_SAME |= {"stop_gradient", "pvary", "device_put"}
# Nothing that follows them can be a part of them.
_CLOSED = {"random_bits", "pallas_call", "gather", "sort", "custom_call", "top_k"}
# What they read may be computed on the way.
_READS_FUSED = {"dot_general", "conv_general_dilated", "dynamic_update_slice"}


@dataclass
class Peak:
    """The moment at which a program needs most."""

    bytes: int
    """What it needs besides its arguments."""
    arrays: list[tuple[Value, str]] = field(default_factory=list)
    """What exists then: each array, and what made it."""


def peak(program: Program, *, fuses_products: bool = True) -> Peak:
    """The most memory that a program needs at a time, besides its inputs and outputs.

    Args:
        program: The program.
        fuses_products: Whether products compute elementwise operands on the way and apply what
            follows them, as XLA does on TPUs; cuBLAS reads and writes arrays.

    Returns:
        The bytes, and the arrays that exist then.
    """
    walk = _Walk(program, fuses_products)
    return walk.run(set(), set())


class _Walk:
    """The lives of the arrays of one program. The n-th operation happens at the time 2 n."""

    def __init__(self, program: Program, fuses_products: bool):
        self.program, self.fuses = program, fuses_products
        self.uses = Counter(
            value for op in program.operations for value in op.operands if value is not None
        )
        self.uses.update(value for value in program.outputs if value is not None)
        self.roots: dict[Value, frozenset[Value]] = {}  # what a value is computed from
        self.same: dict[Value, Value] = {}  # another name -> the array
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        self.maker: dict[Value, str] = {}
        self.open: set[Value] = set()  # may still be changed by what follows
        self.during: dict[int, list[Peak]] = {}  # what loops need inside
        self.temporary: dict[int, list[tuple[Value, str]]] = {}
        self.reader = {value: op for op in program.operations for value in op.operands}
        self.late: set[Value] = set()  # made when they are first read
        self.narrow: dict[tuple[Value, Any], Value] = {}  # copies in the compute dtype
        self.shares: list[tuple[Value, Value]] = []  # a result in place of an operand

    def run(self, owned: set[Value], written: set[Value]) -> Peak:
        """The peak; `owned` are inputs that it keeps, `written` outputs that the caller keeps."""
        for value in owned:
            self._make(value, 0, "loop state")
        for number, operation in enumerate(self.program.operations):
            self._operate(operation, 2 * number)
        end = 2 * len(self.program.operations)
        for value in self.program.outputs:
            if value is None or value in written:
                continue
            self._read(value, end)
            if owned and value in self.roots and self._array(value) not in self.first:
                self.temporary.setdefault(end, []).append((value, "loop state"))
        return self._highest(end)

    def _operate(self, op: Operation, time: int) -> None:
        if op.name in _SAME and (op.name != "reshard" or _unmoved(op)):
            self._alias(op, time)
        elif op.name in _FUSED or _late(op):
            self._fuse(op)
        elif op.name in LOOPS:
            self._loop(op, time)
        elif _cuts(op) and (self.uses[op.results[0]] == 1 or not self._roots(op.operands[0])):
            self._fuse(op)
        else:
            whole = not (_cuts(op) or (op.name in _READS_FUSED and self.fuses))
            reduces = op.name.startswith(("reduce_", "arg", "cum"))
            for value in op.operands:
                self._read(value, time, whole=whole and not reduces)
            for value in op.results:
                value.shape = _in_memory(op, value)
                self._make(value, time, op.name, changes=op.name not in _CLOSED)
                if op.name == "random_bits":  # needs a key alone, so it waits for its first reader
                    self.late.add(value)
            if op.name == "dot_general" and (parts := scattered(op)) > 1:
                (value,) = op.results
                whole = Value((parts, *value.shape), value.dtype, value.source)
                self.temporary.setdefault(time, []).append((whole, "sum over rows"))

    def _alias(self, op: Operation, time: int) -> None:
        (result,) = op.results
        if not op.operands:
            self.roots[result] = frozenset()
            return
        value = op.operands[0]
        self.roots[result] = self._roots(value)
        array = self._array(value)
        if array in self.first or value not in self.roots:
            self.same[result] = array
        if array in self.open and self.uses[value] == 1 and self.uses[result] == 1:
            return
        self.open.discard(array)

    def _fuse(self, op: Operation) -> None:
        """The result is computed where it is read, or written by the operation before it."""
        roots = frozenset().union(*(self._roots(value) for value in op.operands))
        for result in op.results:
            self.roots[result] = roots
        (result, *others) = op.results
        arrays = [(self._array(v), v) for v in op.operands if self.uses[v] == 1]
        usable = [a for a, _ in arrays if a in self.open and self._narrow_enough(result, a.bytes)]
        latest = max(usable, key=lambda a: self.first[a], default=None)
        kept = latest is not None and self.fuses and not others
        if kept and result.shape and len(result.shape) >= len(latest.shape) - 2:
            self._replace(latest, result, roots - {latest})
        for array, _ in arrays:
            self.open.discard(array)

    def _narrow_enough(self, result: Value, most: int) -> bool:
        """Whether what follows a result, one after the other, is written in so many bytes."""
        while result.bytes > most:
            reader = self.reader.get(result)
            if self.uses[result] != 1 or reader is None or reader.name not in _FUSED:
                return False
            (result, *_) = reader.results
        return True

    def _replace(self, array: Value, result: Value, others: frozenset[Value]) -> None:
        """An operation writes what follows it instead of its own result."""
        time, maker = self.first.pop(array), self.maker.pop(array)
        del self.last[array]
        self.open.discard(array)
        for root in others:
            self._touch(root, time)
            if root.bytes == result.bytes:
                self.shares.append((result, root))
        self.roots.pop(result)
        self._make(result, time, maker, changes=True)
        result.source = result.source or array.source

    def _loop(self, op: Operation, time: int) -> None:
        parts = _LoopParts.of(op)
        for value in parts.constants:
            self._read(value, time, whole=True)
        for value, part in parts.stacks:
            self._read(value, time, whole=True)
            self._keep_narrow(op.bodies[0], value, part, time)
            if value is not None and _splits_lanes(op.bodies[0], part):
                # The axis that is split is the last in memory, of which a tile has 128 numbers.
                *rest, lanes = value.shape
                value.shape = *rest, -(-lanes // 128) * 128
        for value in parts.state:
            self._read(value, time, whole=True, moved=True)
        peaks = []
        for body, (owned, written) in zip(op.bodies, parts.owned, strict=True):
            peaks.append(_Walk(body, self.fuses).run(owned, written))
        self.during[time] = [max(peaks, key=lambda each: each.bytes)]
        for number, value in enumerate(op.results):
            stacked = number >= parts.num_state
            self._make(value, time if stacked else time + 1, "saved by the loop", changes=False)

    def _keep_narrow(self, body: Program, stack: Value | None, part: Value, time: int) -> None:
        """A loop that reads an array in a narrower dtype alone reads a copy, made once."""
        readers = [op for op in body.operations if part in op.operands]
        dtypes = {op.results[0].dtype for op in readers}
        narrow = all(op.name == "convert_element_type" for op in readers) and len(dtypes) == 1
        if stack is None or not narrow or min(dtypes).itemsize >= part.dtype.itemsize:
            return
        copy = Value(stack.shape, min(dtypes), readers[0].results[0].source)
        copy = self.narrow.setdefault((self._array(stack), copy.dtype), copy)
        if copy not in self.first:
            self._make(copy, time, "cast")
        self._touch(copy, time)

    def _roots(self, value: Value) -> frozenset[Value]:
        if value in self.roots:
            return self.roots[value]
        return frozenset((value,)) if value in self.first else frozenset()

    def _array(self, value: Value) -> Value:
        return self.same.get(value, value)

    def _make(self, value: Value, time: int, maker: str, *, changes: bool = False) -> None:
        self.first[value] = self.last[value] = time
        self.maker[value] = maker
        if changes and self.uses[value] == 1:
            self.open.add(value)

    def _touch(self, array: Value, time: int) -> None:
        if array in self.last:
            if array in self.late:
                self.late.remove(array)
                self.first[array] = time
            self.last[array] = max(self.last[array], time)

    def _read(
        self, value: Value | None, time: int, *, whole: bool = False, moved: bool = False
    ) -> None:
        """An operation reads a value; `whole`: as an array; `moved`: and may overwrite it."""
        if value is None:
            return
        array = self._array(value)
        self.open.discard(array)
        if whole and value in self.roots and array not in self.first and self.roots[value]:
            self.temporary.setdefault(time, []).append((value, "operand"))
        for root in self._roots(value):
            self._touch(root, time - 1 if moved and self.uses[value] == 1 else time)

    def _highest(self, end: int) -> Peak:
        """The moment of the largest sum."""
        changes: Counter[int] = Counter()
        for value, start in self.first.items():
            changes[start] += value.bytes
            changes[self.last[value] + 1] -= value.bytes
        for result, root in self.shares:
            if result in self.first and self.last.get(root) == self.first[result]:
                changes[self.first[result]] -= root.bytes
                changes[self.first[result] + 1] += root.bytes
        best, now, moment = -1, 0, 0
        for time in range(-1, end + 2):
            now += changes[time]
            inside = sum(each.bytes for each in self.during.get(time, ()))
            inside += sum(value.bytes for value, _ in self.temporary.get(time, ()))
            if now + inside > best:
                best, moment = now + inside, time
        replaced = {root for result, root in self.shares if self.first.get(result) == moment}
        arrays = [
            (value, self.maker[value])
            for value, start in self.first.items()
            if start <= moment <= self.last[value]
            and not (value in replaced and self.last[value] == moment)
        ]
        arrays += self.temporary.get(moment, [])
        arrays += [each for inner in self.during.get(moment, ()) for each in inner.arrays]
        return Peak(best, arrays)


@dataclass
class _LoopParts:
    """Which operands of a loop are what."""

    constants: list[Value | None]
    state: list[Value | None]
    stacks: list[tuple[Value | None, Value]]
    """Arrays that it reads a slice of each time, and the slices."""
    num_state: int
    owned: list[tuple[set[Value], set[Value]]]
    """For each body: the inputs that are its own, and the outputs written for the caller."""

    @classmethod
    def of(cls, op: Operation) -> "_LoopParts":
        params = op.equation.params
        if op.name == "scan":
            consts, carry = params["num_consts"], params["num_carry"]
            body = op.bodies[0]
            state = body.inputs[consts : consts + carry]
            slices = [v for v in body.inputs[consts + carry :] if _read_often(body, v)]
            written = {v for v in body.outputs[carry:] if v is not None}
            written -= set(body.outputs[:carry])
            rest = op.operands
            return cls(
                rest[:consts],
                rest[consts : consts + carry],
                list(zip(rest[consts + carry :], body.inputs[consts + carry :], strict=True)),
                carry,
                [({*state, *slices}, written)],
            )
        if op.name == "while":
            consts = params["cond_nconsts"] + params["body_nconsts"]
            state = op.operands[consts:]
            body = op.bodies[-1]
            own = set(body.inputs[params["body_nconsts"] :])
            condition = op.bodies[0]
            owned = [(own, set()) if each is body else (set(), set()) for each in op.bodies]
            del condition
            return cls(op.operands[:consts], state, [], len(op.results), owned)
        owned = [(set(body.inputs), set()) for body in op.bodies]
        return cls(op.operands[:1], op.operands[1:], [], len(op.results), owned)


def _read_often(program: Program, value: Value) -> bool:
    """Whether several operations read a slice: then it is copied out of its stack."""
    return sum(value in op.operands for op in program.operations) > 1


def _in_memory(op: Operation, value: Value) -> tuple[int, ...]:
    """The shape of what an operation writes."""
    if op.name == "pallas_call":
        return _in_tiles(value)
    # The generator of random bits makes words in pairs.
    return (2, *value.shape) if op.name == "random_bits" else value.shape


def _in_tiles(value: Value) -> tuple[int, ...]:
    """The shape of a kernel's array in memory: whole tiles of 4 KiB along its last axes."""
    if len(value.shape) < 2:
        return value.shape
    *rest, rows, lanes = value.shape
    sublanes = 32 // value.dtype.itemsize
    return *rest, -(-rows // sublanes) * sublanes, -(-lanes // 128) * 128


def _late(op: Operation) -> bool:
    """Whether a sum over devices waits for its reader, as that of a gradient for the optimizer."""
    return op.name == "reshard" and bool(op.operands) and bool(unreduced(op.operands[0]))


def _cuts(op: Operation) -> bool:
    """Whether each device takes its part of what all have."""
    if op.name != "reshard" or not op.operands:
        return False
    (given,), (made,) = op.operands, op.results
    return cut(given) < cut(made) and not unreduced(given)


def _splits_lanes(program: Program, value: Value) -> bool:
    """Whether an array is split along its last axis, as rotary embeddings do with heads."""
    readers = [op for op in program.operations if value in op.operands]
    casts = [op.results[0] for op in readers if op.name == "convert_element_type"]
    return any(
        op.name == "split" and op.equation.params["axis"] == len(value.shape) - 1
        for op in program.operations
        if value in op.operands or any(cast in op.operands for cast in casts)
    )


def _unmoved(op: Operation) -> bool:
    """Whether a change of sharding leaves every device what it has."""
    if not op.operands:
        return True
    (given,), (made,) = op.operands, op.results
    return given.automatic != made.automatic or given.shape == made.shape
