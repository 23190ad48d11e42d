"""What a compiled step sends between devices: which collective, over which axes, how much."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxformer.plan.hlo import Instruction, Module

KINDS = (
    *("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_LISTED = re.compile(r"replica_groups=\{(\{[\d,{}]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(((?:[^()]|\([^)]*\))*)\))? \{([^}]*)\}"
)
_ORDER = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}]*\})\}")


class Collective(NamedTuple):
    """The collectives of one kind over the same axes, in one step of one device."""

    kind: str
    """"all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"."""
    axes: tuple[str, ...]
    """The mesh axes over which it goes."""
    bytes: int
    """Of all together: the larger of what goes in and comes out on one device. An all-gather's
    result, a reduce-scatter's operand."""
    count: int
    """How often they run."""


def collectives(module: Module, mesh: Mapping[str, int]) -> list[Collective]:
    """The collectives that a step of a compiled program runs, those in loops as often as it does.

    Args:
        module: The program.
        mesh: The sizes of the mesh's axes; device i is the i-th of the mesh, row by row.

    Returns:
        One for each kind and set of axes, the largest first. What moves between no two devices is
        left out.
    """
    total, count = Counter(), Counter()
    for instruction, computation in module.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS or not _counts(module, computation):
            continue
        axes = _axes(instruction, mesh)
        if not axes:
            continue
        kind = "reduce-scatter" if computation.startswith("all-reduce-scatter") else kind
        key, times = (kind, axes), module.runs[computation]
        total[key] += times * _bytes(kind, instruction, math.prod(mesh[axis] for axis in axes))
        count[key] += times
    ordered = sorted(total, key=lambda key: -total[key])
    return [Collective(*key, total[key], count[key]) for key in ordered]


def _counts(module: Module, computation: str) -> bool:
    # On TPUs an asynchronous collective is written in the fusion that starts it, in each fusion
    # that it runs beside, and in the one that waits for it: the first counts.
    targets = [each.rest for each in module.computations[computation]]
    is_part = any('custom_call_target="AsyncCollective' in rest for rest in targets)
    is_start = any('custom_call_target="AsyncCollectiveStart"' in rest for rest in targets)
    is_part |= computation.startswith("async_collective_fusion")
    return is_start or not is_part


def _bytes(kind: str, instruction: Instruction, devices: int) -> int:
    sizes = [array.bytes for array in instruction.arrays]
    if instruction.opcode.endswith("-start"):
        # Operands and results, and on TPUs two counters: the results are the larger half.
        large = [size for size in sizes if size > 4] or sizes
        half = len(large) // 2 or 1
        return sum(large[half:] or large) if kind != "all-reduce" else sum(large)
    is_operand = kind == "reduce-scatter" and instruction.opcode == "reduce-scatter"
    return sum(sizes) * (devices if is_operand else 1)


def _axes(instruction: Instruction, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which the devices of a group differ."""
    groups = _groups(instruction.rest, math.prod(mesh.values()))
    places = np.array(np.unravel_index(groups, tuple(mesh.values())))  # [axis, group, member]
    differs = (places != places[..., :1]).any(axis=(1, 2))
    return tuple(name for name, varies in zip(mesh, differs, strict=True) if varies)


def _groups(text: str, num_devices: int) -> np.ndarray:
    """Which devices work together: `[group, member]`."""
    if found := _IOTA.search(text):
        return _iota(found[2], found[3]).reshape(_numbers(found[1])[0], -1)
    if found := _NAMED.search(text):
        return _named_groups(*found.groups())
    if found := _PAIRS.search(text) or _LISTED.search(text):
        return np.array([_numbers(group) for group in re.findall(r"\{([\d,]+)\}", found[1])])
    return np.arange(num_devices)[None]  # no groups: all devices


def _named_groups(axes: str, device_ids: str | None, chosen: str) -> np.ndarray:
    sizes = {name: int(size) for name, size in re.findall(r"'?([\w.]+)'?=(\d+)", axes)}
    if device_ids is None:
        ids = np.arange(math.prod(sizes.values()))
    else:
        order = _ORDER.search(device_ids)
        ids = _iota(order[1], order[2]) if order else _numbers(device_ids)
    grid, names = np.reshape(ids, tuple(sizes.values())), []
    # A part of an axis, 'a':(before)size, is one of the axes that it is cut into.
    split = {name: [size] for name, size in sizes.items()}
    parts = re.findall(r"'?([\w.]+)'?(?::\((\d+)\)(\d+))?", chosen)
    for name, before, size in parts:
        if before:
            rest = sizes[name] // (int(before) * int(size))
            split[name] = [int(before), int(size), rest]
        names.append((name, 1 if before else 0))
    shape = [size for name in sizes for size in split[name]]
    where = {(name, i): None for name in sizes for i in range(len(split[name]))}
    where = {key: place for place, key in enumerate(where)}
    inner = [where[key] for key in names]
    outer = [place for place in where.values() if place not in inner]
    members = math.prod(shape[place] for place in inner)
    return grid.reshape(shape).transpose(outer + inner).reshape(-1, members)


def _iota(dims: str, order: str | None) -> np.ndarray:
    """The numbers from 0, in an array of these dimensions whose axes are then put in an order."""
    ids = np.arange(math.prod(_numbers(dims))).reshape(_numbers(dims))
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
