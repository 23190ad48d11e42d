"""The collectives of a compiled step."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxformer.plan.hlo import Instruction, Module

KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(((?:[^()]|\([^)]*\))*)\))? \{([^}]*)\}"
)
_ORDER = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")


class Collective(NamedTuple):
    """The collectives of one kind over the same axes in a step, on one device."""

    kind: str
    """"all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"."""
    axes: tuple[str, ...]
    bytes: int
    """Total bytes: of results for all-gathers, of operands for reduce-scatters."""
    count: int


def collectives(module: Module, mesh: Mapping[str, int]) -> list[Collective]:
    """Returns the collectives of one step of a compiled program, including those in loops."""
    total, count = Counter(), Counter()
    for instruction, computation in module.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS or not _counts(module, computation):
            continue
        axes = _axes(instruction.rest, mesh)
        if not axes:
            continue
        kind = "reduce-scatter" if computation.startswith("all-reduce-scatter") else kind
        key, times = (kind, axes), module.runs[computation]
        total[key] += times * _bytes(kind, instruction, math.prod(mesh[axis] for axis in axes))
        count[key] += times
    ordered = sorted(total, key=lambda key: -total[key])
    return [Collective(*key, total[key], count[key]) for key in ordered]


def _counts(module: Module, computation: str) -> bool:
    """Whether to count the collectives in a computation; asynchronous ones on TPUs count once."""
    # An asynchronous collective appears in the fusion that starts it, in each fusion that it
    # overlaps with, and in the fusion that waits for it.
    targets = [each.rest for each in module.computations[computation]]
    if any('custom_call_target="AsyncCollectiveStart"' in rest for rest in targets):
        return True
    is_part = any('custom_call_target="AsyncCollective' in rest for rest in targets)
    return not is_part and not computation.startswith("async_collective_fusion")


def _bytes(kind: str, instruction: Instruction, devices: int) -> int:
    sizes = [array.bytes for array in instruction.arrays]
    if instruction.opcode.endswith("-start"):
        # The tuple contains operands, results, and on TPUs two counters; the results are the larger
        # half.
        large = [size for size in sizes if size > 4] or sizes
        half = len(large) // 2 or 1
        return sum(large[half:] or large) if kind != "all-reduce" else sum(large)
    is_operand = kind == "reduce-scatter" and instruction.opcode == "reduce-scatter"
    return sum(sizes) * (devices if is_operand else 1)


def _axes(text: str, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which the devices of a group differ."""
    groups = _groups(text, math.prod(mesh.values()))
    places = np.array(np.unravel_index(groups, tuple(mesh.values())))  # [axis, group, member]
    differs = (places != places[..., :1]).any(axis=(1, 2))
    return tuple(name for name, varies in zip(mesh, differs, strict=True) if varies)


def _groups(text: str, num_devices: int) -> np.ndarray:
    """Returns the groups of devices `[group, member]`; only the first if axes are named."""
    if found := _IOTA.search(text):
        return _iota(found[2], found[3]).reshape(_numbers(found[1])[0], -1)
    if found := _NAMED.search(text):
        return _first_group(*found.groups())[None]
    if found := _LISTED.search(text):
        return np.array([_numbers(group) for group in re.findall(r"\{([\d,]+)\}", found[1])])
    return np.arange(num_devices)[None]  # no groups: all devices


def _first_group(axes: str, device_ids: str | None, chosen: str) -> np.ndarray:
    """Returns the group of device 0 along named axes; 'a':(before)size denotes a sub-axis."""
    sizes = {name: int(size) for name, size in re.findall(r"'?([\w.]+)'?=(\d+)", axes)}
    ids = np.arange(math.prod(sizes.values()))
    if device_ids is not None:
        order = _ORDER.search(device_ids)
        ids = _iota(order[1], order[2]) if order else np.array(_numbers(device_ids))
    places = {name: np.zeros(1, int) for name in sizes}
    for name, before, size in re.findall(r"'?([\w.]+)'?(?::\((\d+)\)(\d+))?", chosen):
        whole = sizes[name]
        part = int(size or whole)
        stride = whole // (int(before or 1) * part)
        places[name] = np.add.outer(places[name], stride * np.arange(part)).ravel()
    return ids.reshape(tuple(sizes.values()))[np.ix_(*places.values())].ravel()


def _iota(dims: str, order: str | None) -> np.ndarray:
    """Returns an iota array with these dimensions and transposed axes."""
    ids = np.arange(math.prod(_numbers(dims))).reshape(_numbers(dims))
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
