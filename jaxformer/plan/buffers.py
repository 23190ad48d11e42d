"""The largest arrays of a compiled program at the moment when it needs most memory."""

import re
from typing import NamedTuple

from jaxformer.plan.hlo import Module

_LIVE = re.compile(r"^\s+([\w.\-]+)\{[\d,]*\}: (\d+) bytes \(cumulative")
_TEMPORARY = re.compile(r"^allocation \d+: size (\d+), page 0, preallocated-temp", re.MULTILINE)
_KEPT = re.compile(
    r"^allocation \d+: size (\d+), page 0, (?:parameter|maybe-live-out|constant)", re.MULTILINE
)
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
