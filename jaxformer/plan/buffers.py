"""The largest arrays of a compiled program, and the memory that it needs."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from jaxformer.plan.hlo import Module

_VALUE = re.compile(r"^ value: <\d+ ([\w.\-]+)(?:\{[\d,]*\})? @\d+> \(size=(\d+),offset=(\d+)\)")
_TEMPORARY = re.compile(r"^allocation \d+: size (\d+), page 0, preallocated-temp", re.MULTILINE)
_KEPT = re.compile(
    r"^allocation \d+: size (\d+), page 0, (?:parameter|maybe-live-out|constant)", re.MULTILINE
)


class Buffer(NamedTuple):
    """An array in memory."""

    bytes: int
    """Its size on one device."""
    array: str
    """Its type there: "bf16[32,16,8192,4096]"."""
    operation: str
    """What makes it, in JAX's words."""
    source: str
    """The line that asks for it: "jaxformer/nn/stack.py:120"; "" where it is not known."""


def largest_buffers(module: Module, assignment: str, number: int = 12) -> list[Buffer]:
    """The largest arrays of a program, of which no two have the same place in memory.

    Args:
        module: The compiled program.
        assignment: What XLA writes about it in its dump, `...-buffer-assignment.txt`.
        number: How many, at most.

    Returns:
        The arrays, the largest first.
    """
    by_name = {each.name: each for each, _ in module.instructions()}
    taken: list[tuple[str, int, int]] = []
    found = []
    for size, allocation, offset, name in sorted(_values(assignment), key=lambda v: -v[0]):
        if len(found) == number:
            break
        shares = any(a == allocation and offset < e and b < offset + size for a, b, e in taken)
        instruction = by_name.get(name)
        if shares or instruction is None:
            continue
        taken.append((allocation, offset, offset + size))
        sizes = {array.bytes: array for array in instruction.arrays}
        array = sizes.get(size) or max(instruction.arrays, key=lambda a: a.bytes, default="")
        operation = instruction.op_name.replace("\\", "") or name
        found.append(Buffer(size, str(array), operation, module.source(instruction)))
    return found


def _values(assignment: str) -> Iterator[tuple[int, str, int, str]]:
    """The size, allocation, offset in it and name of every array in the device's own memory."""
    allocation = ""
    for line in assignment.splitlines():
        if line.startswith("allocation"):
            allocation = line if _KEPT.match(line) or _TEMPORARY.match(line) else ""
        elif allocation and (value := _VALUE.match(line)):
            yield int(value[2]), allocation, int(value[3]), value[1]


def assigned_bytes(assignment: str) -> tuple[int, int]:
    """The memory that a program needs, as the compiler assigns it before it writes any code.

    Args:
        assignment: What XLA writes about it in its dump, `...-buffer-assignment.txt`.

    Returns:
        Bytes of arguments, results that are not written over them and constants; and of
        temporaries.
    """
    kept = sum(int(size) for size in _KEPT.findall(assignment))
    return kept, sum(int(size) for size in _TEMPORARY.findall(assignment))
