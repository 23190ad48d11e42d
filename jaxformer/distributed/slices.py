"""Slices: the chip, the topology, and the number of slices."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice

from jaxformer.distributed.chips import Chip, find_chip
from jaxformer.errors import ArgumentError

# A cube of a 3D torus has 4x4x4 chips. Smaller slices, and those of a 2D torus, are listed; larger
# ones consist of whole cubes.
# https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, read 2026-11.
_SMALL_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_ALL_2D = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# Number of chips of the largest slice: https://docs.cloud.google.com/tpu/docs/{v4,v5p,tpu7x}, read
# 2026-11.
_LARGEST = {"v4": 4096, "v5p": 6144, "tpu7x": 9216}
_LARGEST_GPUS = 2**15
_CUBE = 4
_FORM = '"v5p:4x4x4", "v6e:16x16*2" (two slices) or "h100:64"'


@dataclass(frozen=True)
class Slice:
    """The chips of a job: slices of a TPU pod, or GPUs."""

    chip: Chip
    topology: tuple[int, ...]
    """Chips along each dimension of one slice's torus, or the number of GPUs."""
    num_slices: int = 1
    """Number of TPU slices, connected by the data center network."""

    @property
    def chips(self) -> int:
        """Number of chips in all slices."""
        return math.prod(self.topology) * self.num_slices

    @property
    def num_devices(self) -> int:
        """Number of JAX devices in all slices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def hosts(self) -> int:
        """Number of machines of all slices, which is the number of processes."""
        return math.ceil(math.prod(self.topology) / self.chip.chips_per_host) * self.num_slices

    @property
    def shape(self) -> str:
        """The topology of each slice, such as "4x4x4"."""
        return _written(self.topology)

    @property
    def name(self) -> str:
        """The name in the format of `parse_chips`: "v5p:4x4x4*2"."""
        several = f"*{self.num_slices}" if self.num_slices > 1 else ""
        return f"{self.chip.name}:{self.shape}{several}"

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Whether the links along each dimension of the topology form a ring.

        A 3D torus wraps around in slices of whole cubes, a 2D torus along 16 chips:
        https://jax-ml.github.io/scaling-book/tpus/.
        """
        if self.chip.torus_dimensions == 3:
            return (all(size % _CUBE == 0 for size in self.topology),) * 3
        return tuple(size == 16 for size in self.topology)


def parse_chips(text: str) -> Slice:
    """Parses a chip and its topology: "v5p:4x4x4", "v5p:4x4x4*2" for two slices, "h100:64"."""
    name, colon, rest = text.partition(":")
    chip = find_chip(name)
    if not colon or not rest:
        raise ArgumentError(
            f"chips = {text!r}: must have a topology, as {_FORM}; "
            f"{chip.name} has {_listed(chip)}; --find searches for the smallest that fits"
        )
    found = re.fullmatch(r"(\d+(?:x\d+)*)(?:\*(\d+))?", rest.lower())
    if not found or 0 in (topology := tuple(map(int, found[1].split("x")))) or found[2] == "0":
        raise ArgumentError(f"chips = {text!r}: must be a chip and its topology, as {_FORM}")
    num_slices = int(found[2] or 1)
    if chip.kind == "gpu":
        return _gpus(text, chip, topology, num_slices)
    topology = _canonical(topology)
    if topology not in _topologies(chip):
        nearest = ", ".join(_written(each) for each in _nearest(chip, topology))
        raise ArgumentError(
            f"chips = {text!r}: must be a topology of {chip.name}; the nearest are {nearest}"
        )
    return Slice(chip, topology, num_slices)


def slices_of(chip: Chip) -> Iterator[Slice]:
    """Yields every slice of a chip, smallest first; for each size the most compact."""
    if chip.kind == "gpu":
        sizes = [2**power for power in range(_LARGEST_GPUS.bit_length())]
        yield from (Slice(chip, (size,)) for size in sizes)
        return
    yield from (Slice(chip, topology) for topology in _compact(chip).values())


def _gpus(text: str, chip: Chip, topology: tuple[int, ...], num_slices: int) -> Slice:
    per_host = chip.chips_per_host
    number = topology[0]
    whole = number % per_host == 0 or number < per_host
    if len(topology) > 1 or num_slices > 1 or not whole:
        down = max(number // per_host, 1) * per_host
        raise ArgumentError(
            f"chips = {text!r}: must be a number of GPUs in whole machines of {per_host}; "
            f"the nearest are {chip.name}:{down}, {chip.name}:{down + per_host}"
        )
    return Slice(chip, (number,))


def _topologies(chip: Chip) -> list[tuple[int, ...]]:
    """Returns the topologies of one slice, smallest first, then most compact first."""
    if chip.torus_dimensions == 2:
        return list(_ALL_2D)
    largest = _LARGEST[chip.name]
    sides = range(_CUBE, largest // _CUBE**2 + 1, _CUBE)
    boxes = list(_boxes(sides, largest))
    return [*_SMALL_3D, *sorted(boxes, key=lambda box: (math.prod(box), sum(box)))]


def _boxes(sides: range, largest: int) -> Iterator[tuple[int, int, int]]:
    for a, b in combinations_with_replacement(sides, 2):
        if a * b * b > largest:
            continue
        yield from ((a, b, c) for c in sides if c >= b and a * b * c <= largest)


def _canonical(topology: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a topology in the order of the documentation, which writes 2x2x1 but 2x2x4."""
    return topology if topology == (2, 2, 1) else tuple(sorted(topology))


def _compact(chip: Chip) -> dict[int, tuple[int, ...]]:
    """Returns the most compact topology of each number of chips, smallest first."""
    found: dict[int, tuple[int, ...]] = {}
    for topology in _topologies(chip):
        found.setdefault(math.prod(topology), topology)
    return found


def _nearest(chip: Chip, topology: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns the topologies with the closest number of chips, compact ones first."""
    size, compact = math.prod(topology), _compact(chip)
    near = sorted(compact, key=lambda number: abs(math.log(number / size)))
    return [compact[number] for number in sorted(near[:3])]


def _listed(chip: Chip) -> str:
    if chip.kind == "gpu":
        return f"machines of {chip.chips_per_host}"
    shown = [each.shape for each in islice(slices_of(chip), 8)]
    return ", ".join(shown) + (", ..." if chip.torus_dimensions == 3 else "")


def _written(topology: tuple[int, ...]) -> str:
    return "x".join(map(str, topology))
