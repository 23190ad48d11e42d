"""Which links a mesh axis uses: its part of a torus, of a machine, and of the network."""

from collections.abc import Mapping
from itertools import combinations
from math import gcd, prod
from typing import NamedTuple

from jaxformer.distributed.sharding import MESH_AXES
from jaxformer.plan.slices import Slice


class Link(NamedTuple):
    """What joins the devices along a mesh axis."""

    inner: int
    """Devices along the axis that the links of a slice, or of a machine, join."""
    outer: int
    """Into how many slices or machines the axis is cut."""
    bandwidth: float
    """Bytes per second that a device receives through the links."""
    network: float
    """Bytes per second that a device receives through the network."""


def links(slice_: Slice, mesh: Mapping[str, int]) -> dict[str, Link]:
    """What joins the devices along each axis of a mesh.

    The innermost axis, tensor, has the closest devices; what crosses slices or machines is the
    outermost axis that divides over them.

    Args:
        slice_: The chips.
        mesh: The devices along each axis.

    Returns:
        The link of each axis.
    """
    chip = slice_.chip
    network = chip.network_bandwidth.value
    if chip.kind == "gpu":
        left, joined = chip.link_domain or 1, {}
        for axis in reversed(MESH_AXES):
            inner = gcd(mesh[axis], left)
            left //= inner
            joined[axis] = Link(inner, mesh[axis] // inner, chip.link_bandwidth.value, network)
        return joined
    outer, slices = dict.fromkeys(MESH_AXES, 1), slice_.num_slices
    for axis in MESH_AXES:
        outer[axis] = gcd(mesh[axis], slices)
        slices //= outer[axis]
    inner = {axis: mesh[axis] // outer[axis] for axis in MESH_AXES}
    dimensions = _dimensions(slice_, inner)
    one_way = chip.link_bandwidth.value
    return {
        axis: Link(inner[axis], outer[axis], one_way * dimensions[axis], network)
        for axis in MESH_AXES
    }


def _dimensions(slice_: Slice, mesh: Mapping[str, int]) -> dict[str, float]:
    """Links of a device along each axis: two for a dimension that closes to a ring, else one."""
    left = list(zip(slice_.topology, slice_.wraps, strict=True))
    cores, used = slice_.chip.devices_per_chip, {}
    for axis in sorted(mesh, key=lambda axis: (mesh[axis] == 1, axis != "tensor", mesh[axis])):
        size = mesh[axis]
        inside = gcd(size, cores)
        cores //= inside
        used[axis] = _taken(left, size // inside)
    return used


def _taken(left: list[tuple[int, bool]], size: int) -> float:
    """Takes dimensions of the torus for an axis; returns how many links a device has along it."""
    for count in range(len(left), 0, -1):
        for chosen in combinations(left, count):
            if prod(length for length, _ in chosen) == size:
                for dimension in chosen:
                    left.remove(dimension)
                return sum(2.0 if wraps and length > 2 else 1.0 for length, wraps in chosen)
    total = 0.0
    for number, (length, wraps) in enumerate(left):
        part = gcd(length, size)
        if part > 1:
            total += 2.0 if wraps and part == length and length > 2 else 1.0
            size //= part
            left[number] = (length // part, False)
    return max(total, 1.0)
