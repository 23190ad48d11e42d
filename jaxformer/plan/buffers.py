"""The largest arrays of a compiled program at the moment when it needs most memory."""

import re
from typing import NamedTuple

from jaxformer.plan.hlo import Module

_LIVE = re.compile(r"^\s+([\w.\-]+)\{[\d,]*\}: (\d+) bytes \(cumulative")
_TEMPORARY = re.compile(r"^allocation \d+: size (\d+), page 0, preallocated-temp", re.MULTILINE)
_KEPT = re.compile(r"^allocation \d+: size (\d+), page 0, (?:parameter|maybe-live-out|constant)")
# Of another memory than the device's own: "bf16[8,128]{1,0:T(8,128)S(1)}" is in VMEM.
_ELSEWHERE = re.compile(r"S\([1-9]\d*\)")


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


def largest_buffers(module: Module, live_ranges: str, number: int = 12) -> list[Buffer]:
    """The largest arrays at the peak.

    Args:
        module: The compiled program.
        live_ranges: What XLA writes about it in its dump, `...-live-range.txt`.
        number: How many, at most.

    Returns:
        The arrays, the largest first.
    """
    by_name = {each.name: each for each, _ in module.instructions()}
    _, _, at_peak = live_ranges.partition("(peak):")
    found = []
    for line in at_peak.splitlines()[1:]:
        live = _LIVE.match(line)
        if not live:
            break
        instruction = by_name.get(live[1])
        if instruction is None or _ELSEWHERE.search(instruction.type.split(", ")[0]):
            continue
        sizes = {array.bytes: array for array in instruction.arrays}
        array = sizes.get(int(live[2])) or (instruction.arrays or ("",))[0]
        source = module.source(instruction)
        name = instruction.op_name.replace("\\", "") or instruction.name
        found.append(Buffer(int(live[2]), str(array), name, source))
    return found[:number]


def bytes_needed(assignment: str) -> int:
    """Bytes of memory that a program needs by the compiler's own plan.

    Args:
        assignment: What XLA writes about it in its dump, `...-buffer-assignment.txt`.

    Returns:
        The bytes of arguments, results that are not written over them, constants and temporaries.
    """
    lines = (line for line in assignment.splitlines() if line.startswith("allocation"))
    found = [_KEPT.match(line) or _TEMPORARY.match(line) for line in lines]
    return sum(int(each[1]) for each in found if each)
