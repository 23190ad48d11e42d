"""How much memory a program needs: which of its arrays exist at the same time.

The compiler writes an array to memory where an operation makes it that cannot be a part of another
one: a product, a kernel, a loop, a reduction, a collective. What is elementwise is computed where
it is read, from the arrays that it depends on, or is written by the product that it follows. So
memory is a matter of the former alone, from where each is made to where the last one reads it that
depends on it.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxformer.plan.layout import Layout, mark_kernels
from jaxformer.plan.loops import LoopParts
from jaxformer.plan.program import CLOSED, FUSED, FUSING, LOOPS, SAME, Operation, Program, Value
from jaxformer.plan.shardings import cuts, leaves_in_place, scattered, sums

# A slice is taken at once from an array that is so many times as large.
_SMALL = 8
# Sums over so many devices are quick enough to begin at the end of a layer.
_FEW = 64
# The makers of arrays that wait too long for their readers to be kept on the chip.
_READ_LATER = {"saved by the loop", "loop state", "cast"}


class Held(NamedTuple):
    """An array in memory."""

    value: Value
    """What it is."""
    maker: str
    """What made it."""
    bytes: int
    """Its memory."""


@dataclass
class Peak:
    """The moment at which a program needs most."""

    bytes: int
    """What it needs besides its arguments."""
    arrays: list[Held] = field(default_factory=list)
    """What exists then."""
    on_chip: int = 0
    """Bytes of other arrays, which then are on the chip."""


def peak(program: Program, layout: Layout) -> Peak:
    """The most memory that a program needs at a time, besides its inputs and outputs.

    Args:
        program: The program.
        layout: That of the chip it runs on.

    Returns:
        The bytes, and the arrays that exist then.
    """
    walk = _Walk(program, layout, in_loop=False)
    walk.run(set(), set())
    walk.send_gradients()
    return walk.highest()


class _Walk:
    """The lives of the arrays of one program. The n-th operation happens at the time 2 n."""

    def __init__(self, program: Program, layout: Layout, *, in_loop: bool):
        self.end = 2 * len(program.operations)
        self.program, self.layout, self.in_loop = program, layout, in_loop
        self.readers: dict[Value | None, list[Operation]] = defaultdict(list)
        for op in program.operations:
            for value in op.operands:
                self.readers[value].append(op)
        self.uses = Counter({value: len(ops) for value, ops in self.readers.items()})
        self.uses.update(program.outputs)
        self.roots: dict[Value, frozenset[Value]] = {}  # what a value is computed from
        self.same: dict[Value, Value] = {}  # another name -> the array
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        self.maker: dict[Value, str] = {}
        self.open: set[Value] = set()  # may still be changed by what follows
        self.during: dict[int, Peak] = {}  # what loops need inside
        self.temporary: dict[int, list[tuple[Value, str]]] = {}
        self.narrow: dict[tuple[Value, Any], Value] = {}  # copies in the compute dtype
        self.partial_sums: list[Value] = []  # gradients of a device's own rows
        self.summed_late: list[Value] = []  # what is summed over devices where it is read
        self.shares: list[tuple[Value, Value]] = []  # a result in place of an operand

    def bytes(self, value: Value) -> int:
        """What an array takes of the device's memory."""
        return 0 if value.on_host else self.layout.bytes(value)

    def run(self, owned: set[Value], written: set[Value]) -> None:
        """Follows the program; it keeps the inputs `owned`, its caller the outputs `written`."""
        mark_kernels(self.program)
        for value in owned:
            self._make(value, 0, "loop state")
        for number, operation in enumerate(self.program.operations):
            self._operate(operation, 2 * number)
        for value in self.program.outputs:
            if value is None or value in written:
                continue
            self._read(value, self.end)
            if self.in_loop and self._is_computed_late(value):
                self.temporary.setdefault(self.end, []).append((value, "loop state"))
        for value in self.summed_late:
            array = self._array(value)
            if array in self.last:
                self.temporary.setdefault(self.last[array], []).append((value, "sum over devices"))

    def send_gradients(self) -> None:
        """Sums over devices run beside what follows the last loop, each into another array."""
        after = max(self.during, default=0) + 1
        for value in self.partial_sums:
            copy = Value(value.shape, value.dtype, value.source)
            self._make(copy, max(after, self.first[value]), "sum over devices")
            self.last[copy] = self.end

    def _operate(self, op: Operation, time: int) -> None:
        if op.name == "optimization_barrier":
            self._wait(op, time)
        elif op.name in SAME and (op.name != "reshard" or leaves_in_place(op)):
            self._alias(op, time)
        elif op.name == "slice" and self._is_small_part(op):
            self._read(op.operands[0], time)
            self._make(op.results[0], time, op.name)
        elif op.name in FUSED and self._is_written(op):
            self._write(op, time)
        elif op.name in FUSED or sums(op):
            self._fuse(op)
            self.summed_late += op.operands[:1] * sums(op)
        elif op.name in LOOPS:
            self._loop(op, time)
        elif cuts(op) and self._is_cut_late(op):
            self._fuse(op)
        else:
            whole = not (cuts(op) or (op.name in FUSING and self.layout.fuses_products))
            reduces = op.name.startswith(("reduce_", "arg", "cum"))
            for value in op.operands:
                self._read(value, time, whole=whole and not reduces)
            for value in op.results:
                self._make(value, time, op.name, changes=op.name not in CLOSED)
            if op.name == "dot_general" and (parts := scattered(op)) > 1:
                self._sum_over_rows(op, parts, time)

    def _sum_over_rows(self, op: Operation, parts: int, time: int) -> None:
        """A kernel's gradient of the device's own rows is whole, until it is summed and cut."""
        (value,) = op.results
        whole = Value((parts, *value.shape), value.dtype, value.source)
        made_last = self._is_made_last(op, whole)
        if made_last or (self.in_loop and self._waits(op, whole, parts)):
            for operand in op.operands:
                self._read(operand, self.end - 1)
        if made_last:
            self._make(whole, self.end - 1, "sum over rows")
            return
        if not self.in_loop and self.layout.fuses_products:
            self._write_in_place(op.operands, time)
            time += 1
        self._make(whole, time, "sum over rows")
        if self.layout.sums_later:
            self.last[whole] = self.end
            self.partial_sums.append(whole)

    def _is_made_last(self, op: Operation, whole: Value) -> bool:
        """Whether a gradient outside of layers is larger than what it is made of, which is kept."""
        held = sum(self.bytes(root) for root in self._roots_of(op))
        outside = not self.in_loop and self.layout.makes_gradients_last
        return outside and held < self.bytes(whole)

    def _waits(self, op: Operation, whole: Value, parts: int) -> bool:
        """Whether a layer keeps to its end what the gradient of a kernel is made of."""
        if self.layout.makes_gradients_last and parts <= _FEW:
            return True
        held = sum(self.bytes(root) for root in self._roots_of(op))
        return self.layout.sums_later and held + self.bytes(whole) <= self.layout.on_chip

    def _is_written(self, op: Operation) -> bool:
        """Whether several products read a result that is as large as what it is made of."""
        (result, *others) = op.results
        products = [reader for reader in self.readers[result] if reader.name == "dot_general"]
        if others or len(products) < 2 or not self.layout.fuses_products:
            return False
        size = self.bytes(result)
        sizes = {self.bytes(root) for root in self._roots_of(op)}
        return size in sizes or (self.layout.writes_narrow and size < max(sizes, default=0))

    def _write(self, op: Operation, time: int) -> None:
        """Writes an elementwise result, in place of an array that is read no more."""
        (result,) = op.results
        for value in op.operands:
            self._read(value, time)
        same = [root for root in self._roots_of(op) if self.bytes(root) == self.bytes(result)]
        self._make(result, time, "fusion")
        self.shares += [(result, root) for root in same]

    def _write_in_place(self, values: list[Value], time: int) -> None:
        """Writes what is to be computed, over the arrays that only it is computed from."""
        for value in values:
            if self._is_computed_late(value) and self.roots[value]:
                self._make(value, time, "fusion")
                size, roots = self.bytes(value), self.roots.pop(value)
                self.shares += [(value, root) for root in roots if self.bytes(root) >= size]

    def _is_small_part(self, op: Operation) -> bool:
        """Whether a slice is taken at once, so that the array need not wait for its readers."""
        (part,) = op.results
        return any(
            array in self.first and _SMALL * self.bytes(part) <= self.bytes(array)
            for array in op.operands
        )

    def _is_cut_late(self, op: Operation) -> bool:
        """Whether devices take their parts where these are read; of what is written, at once."""
        array = self._array(op.operands[0])
        if array in self.first and array not in self.open:
            return False
        return self.uses[op.results[0]] == 1 or not self._roots(op.operands[0])

    def _alias(self, op: Operation, time: int) -> None:
        (result,) = op.results
        if not op.operands:
            self.roots[result] = frozenset()
            return
        value = op.operands[0]
        array = self._array(value)
        self.roots[result] = self._roots(value)
        if not self._is_computed_late(value):
            self.same[result] = array
        if array in self.open and self.uses[value] == 1 and self.uses[result] == 1:
            return
        self.open.discard(array)

    def _wait(self, op: Operation, time: int) -> None:
        """What was to be computed where it is read is written, and the rest is kept until then."""
        for value, result in zip(op.operands, op.results, strict=True):
            self._read(value, time)
            if self._is_computed_late(value):
                self._make(result, time, "fusion")
            else:
                self.same[result], self.roots[result] = self._array(value), self._roots(value)

    def _fuse(self, op: Operation) -> None:
        """The result is computed where it is read, or written by the operation before it."""
        roots = self._roots_of(op)
        for result in op.results:
            self.roots[result] = roots
        (result, *others) = op.results
        arrays = [(self._array(v), v) for v in op.operands if self.uses[v] == 1]
        usable = [
            array
            for array, _ in arrays
            if array in self.open and self._narrow_enough(result, self.bytes(array))
        ]
        latest = max(usable, key=lambda a: self.first[a], default=None)
        kept = latest is not None and self.layout.fuses_products and not others
        if kept and result.shape and len(result.shape) >= len(latest.shape) - 2:
            self._replace(latest, result, roots - {latest})
        for array, _ in arrays:
            self.open.discard(array)

    def _narrow_enough(self, result: Value, most: int) -> bool:
        """Whether what follows a result, one after the other, is written in so many bytes."""
        while self.bytes(result) > most:
            readers = self.readers[result]
            if self.uses[result] != 1 or not readers or readers[0].name not in FUSED:
                return False
            (result, *_) = readers[0].results
        return True

    def _replace(self, array: Value, result: Value, others: frozenset[Value]) -> None:
        """An operation writes what follows it instead of its own result."""
        time, maker = self.first.pop(array), self.maker.pop(array)
        del self.last[array]
        self.open.discard(array)
        for root in others:
            self._touch(root, time)
            if self.bytes(root) == self.bytes(result):
                self.shares.append((result, root))
        self.roots.pop(result)
        self._make(result, time, maker, changes=True)
        result.source = result.source or array.source

    def _loop(self, op: Operation, time: int) -> None:
        parts = LoopParts.of(op)
        for value in parts.constants:
            self._read(value, time, whole=True)
        for value, part in parts.stacks:
            self._read(value, time, whole=True)
            self._keep_narrow(op.bodies[0], value, part, time)
        for value in parts.state:
            self._read(value, time, whole=True, moved=True)
        peaks = []
        for body, (owned, written) in zip(op.bodies, parts.owned, strict=True):
            walk = _Walk(body, self.layout, in_loop=True)
            walk.run(owned, written)
            peaks.append(walk.highest())
        self.during[time] = max(peaks, key=lambda each: each.bytes)
        for number, value in enumerate(op.results):
            stacked = number >= parts.num_state
            part = op.bodies[-1].outputs[number]
            value.in_rows = part is not None and part.in_rows
            self._make(value, time if stacked else time + 1, "saved by the loop", changes=False)

    def _keep_narrow(self, body: Program, stack: Value | None, part: Value, time: int) -> None:
        """A loop that reads an array in a narrower dtype alone reads a copy, made once."""
        readers = [op for op in body.operations if part in op.operands]
        dtypes = {op.results[0].dtype for op in readers}
        narrow = all(op.name == "convert_element_type" for op in readers) and len(dtypes) == 1
        if stack is None or not narrow or min(dtypes).itemsize >= part.dtype.itemsize:
            return
        copy = Value(stack.shape, min(dtypes), readers[0].results[0].source)
        casts = {op.results[0] for op in readers}
        gathers = [op for op in body.operations if op.name == "reshard" and casts & {*op.operands}]
        if gathers and (order := self.layout.to_gather(stack)):
            copy.shape, copy.in_rows = order, True
        copy = self.narrow.setdefault((self._array(stack), copy.dtype), copy)
        if copy not in self.first:
            self._make(copy, time, "cast")
        self._touch(copy, time)

    def _is_computed_late(self, value: Value) -> bool:
        """Whether a value is in no memory, but computed where it is read."""
        return value in self.roots and self._array(value) not in self.first

    def _roots(self, value: Value) -> frozenset[Value]:
        if value in self.roots:
            return self.roots[value]
        return frozenset((value,)) if value in self.first else frozenset()

    def _roots_of(self, op: Operation) -> frozenset[Value]:
        return frozenset().union(*(self._roots(value) for value in op.operands))

    def _array(self, value: Value) -> Value:
        return self.same.get(value, value)

    def _make(self, value: Value, time: int, maker: str, *, changes: bool = False) -> None:
        self.first[value] = self.last[value] = time
        self.maker[value] = maker
        if changes and self.uses[value] == 1:
            self.open.add(value)

    def _touch(self, array: Value, time: int) -> None:
        if array in self.last:
            self.last[array] = max(self.last[array], time)

    def _read(
        self, value: Value | None, time: int, *, whole: bool = False, moved: bool = False
    ) -> None:
        """An operation reads a value; `whole`: as an array; `moved`: and may overwrite it."""
        if value is None:
            return
        array = self._array(value)
        self.open.discard(array)
        if whole and self._is_computed_late(value) and self.roots[value]:
            self.temporary.setdefault(time, []).append((value, "operand"))
        for root in self._roots(value):
            self._touch(root, time - 1 if moved and self.uses[value] == 1 else time)

    def highest(self) -> Peak:
        """The moment of the largest sum."""
        placed: set[Value] = set()
        for result, root in self.shares:
            if result not in placed and self.first.get(result) == self.last.get(root):
                self.last[root] -= 1
                placed.add(result)
        starts, ends = defaultdict(list), defaultdict(list)
        for value, start in self.first.items():
            starts[start].append(Held(value, self.maker[value], self.bytes(value)))
            ends[self.last[value] + 1].append(value)
        alive: dict[Value, Held] = {}
        best = Peak(-1)
        for time in range(-1, self.end + 2):
            for value in ends[time]:
                alive.pop(value, None)
            alive |= {held.value: held for held in starts[time]}
            made = self.temporary.get(time, ())
            here = [*alive.values(), *(Held(v, maker, self.bytes(v)) for v, maker in made)]
            inner = self.during.get(time, Peak(0))
            if inner.bytes + sum(held.bytes for held in here) > best.bytes:
                kept, on_chip = self._off_chip(here, self.layout.on_chip - inner.on_chip)
                size = inner.bytes + sum(held.bytes for held in kept)
                if size > best.bytes:
                    best = Peak(size, kept + inner.arrays, on_chip + inner.on_chip)
        return best

    def _off_chip(self, arrays: list[Held], room: int) -> tuple[list[Held], int]:
        """What stays in the main memory, and how much does not; the largest that fit go first."""
        kept, left = [], room
        for held in sorted(arrays, key=lambda held: -held.bytes):
            first, last = (each.get(held.value, 0) for each in (self.first, self.last))
            waits = any(first < loop <= last for loop in self.during)
            waits = waits and held.maker != "sum over rows"
            if waits or held.maker in _READ_LATER or held.bytes > left:
                kept.append(held)
            else:
                left -= held.bytes
        return kept, room - left
