"""The memory that the compiler assigns to the arrays of a program."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxformer.plan.hlo import Module

# Newer compilers write "page 0" for the device's main memory, older ones (libtpu 0.0.42) omit it.
# Both write a color or page for every other memory.
_VALUE = re.compile(r"^ value: <\d+ ([^ ]+)(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\)")
_SIZE = r"^allocation \d+: size (\d+), (?:page 0, )?"
_TEMPORARY = re.compile(f"{_SIZE}preallocated-temp", re.MULTILINE)
_KEPT = re.compile(f"{_SIZE}(?:parameter|output|maybe-live-out|constant)", re.MULTILINE)
_LIVE = re.compile(r"^\s+([^\s:]+):(\d+)-(\d+)$", re.MULTILINE)


class CompiledBuffer(NamedTuple):
    """An array in memory."""

    bytes: int
    """Its size on one device."""
    array: str
    """Its type on one device: "bf16[32,16,8192,4096]"."""
    operation: str
    """The JAX operation that computes it."""
    source: str
    """The source line: "jaxformer/nn/stack.py:120"; "" if unknown."""


class AllocatedBuffer(NamedTuple):
    """An array in memory with its lifetime."""

    bytes: int
    name: str
    """The instruction that computes it."""
    first: int
    """The time when it is computed."""
    last: int
    """The time of its last use."""


@dataclass(frozen=True)
class Assignment:
    """The memory of a compiled program on one device."""

    kept: int
    """Bytes of arguments, constants, and results that do not replace arguments."""
    temporary: int
    """Bytes of temporaries, with the gaps between them."""
    arguments: tuple[AllocatedBuffer, ...]
    """The arrays of `kept`."""
    at_peak: tuple[AllocatedBuffer, ...]
    """The temporaries at peak memory; arrays that share memory are listed once."""

    @property
    def peak(self) -> int:
        """Peak memory, as in `memory_analysis().peak_memory_in_bytes`."""
        return self.kept + sum(array.bytes for array in self.at_peak)


def read_assignment(assignment: str, live_ranges: str) -> Assignment:
    """Parses the memory assignment of a program, which XLA makes before code generation."""
    _, _, ranges = live_ranges.partition("BufferLiveRange:")
    lives = {
        name.replace("{}", ""): (int(first), int(last))
        for name, first, last in _LIVE.findall(ranges)
    }
    arguments: dict[str, AllocatedBuffer] = {}  # by allocation: results may alias arguments
    temporaries = defaultdict(list)
    kind, allocation = None, ""
    for line in assignment.splitlines():
        if line.startswith("allocation"):
            allocation = line
            kind = next((each for each in (_KEPT, _TEMPORARY) if each.match(line)), None)
        elif kind and (value := _VALUE.match(line)):
            name = value[1]
            size = int(value[2])
            offset = int(value[3])
            if kind is _KEPT:
                arguments.setdefault(allocation, AllocatedBuffer(size, name, 0, 0))
            elif name in lives:
                temporaries[offset, size].append(AllocatedBuffer(size, name, *lives[name]))
    return Assignment(
        kept=sum(int(size) for size in _KEPT.findall(assignment)),
        temporary=sum(int(size) for size in _TEMPORARY.findall(assignment)),
        arguments=tuple(arguments.values()),
        at_peak=tuple(_peak_temporaries(temporaries)),
    )


def _peak_temporaries(
    temporaries: Mapping[tuple[int, int], list[AllocatedBuffer]],
) -> list[AllocatedBuffer]:
    """Returns the temporaries at peak memory; arrays that share memory count once."""
    changes: Counter[int] = Counter()
    for (_, size), arrays in temporaries.items():
        for first, last in _live_intervals(arrays):
            changes[first] += size
            changes[last + 1] -= size
    now, sums = 0, {}
    for time in sorted(changes):
        now += changes[time]
        sums[time] = now
    moment = max(sums, key=lambda time: sums[time], default=0)
    alive = (
        next((array for array in arrays if array.first <= moment <= array.last), None)
        for arrays in temporaries.values()
    )
    return [array for array in alive if array is not None]


def _live_intervals(arrays: list[AllocatedBuffer]) -> Iterator[tuple[int, int]]:
    """Yields the intervals of time in which any of these arrays exists."""
    first, last = None, -1
    for array in sorted(arrays, key=lambda each: each.first):
        if first is not None and array.first > last:
            yield first, last
            first = None
        first = array.first if first is None else first
        last = max(last, array.last)
    if first is not None:
        yield first, last


def largest_buffers(
    module: Module, assignment: Assignment, number: int = 12
) -> list[CompiledBuffer]:
    """Returns the largest arrays at peak memory."""
    by_name = {each.name: each for each, _ in module.instructions()}
    placed = sorted((*assignment.at_peak, *assignment.arguments), key=lambda each: -each.bytes)
    found: list[CompiledBuffer] = []
    for array in placed:
        name = array.name.partition("{")[0]
        if len(found) == number:
            break
        if (instruction := by_name.get(name)) is None:
            continue
        sizes = {each.bytes: each for each in instruction.arrays}
        largest = max(instruction.arrays, key=lambda each: each.bytes, default="")
        text = str(sizes.get(array.bytes) or largest)
        operation = instruction.op_name or name
        source = module.source(instruction)
        found.append(CompiledBuffer(array.bytes, text, operation, source))
    return found
