r"""Roofline estimate of step time from compute, memory bandwidth and communication.

.. math:: t = \max(t_c, t_l) + (1 - o) \min(t_c, t_l) + t_m,
          \qquad t_c = \frac{P}{e_p F} + \frac{A}{e_a F}, \quad t_l = \sum_a t_a + t_n

P and A are the FLOPs of matrix products and of attention, F is the peak of the chip, t_a the time
of the links along a mesh axis, t_n the time of the network between slices or machines, and t_m the
time of the optimizer's passes over the state. `benchmarks/plan_trust.py` fits the constants e_p,
e_a and o.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import gcd, prod
from typing import NamedTuple

from jaxformer.distributed.chips import CHIPS, Chip
from jaxformer.distributed.sharding import MESH_AXES
from jaxformer.distributed.slices import Slice
from jaxformer.plan.closed_form import Work, work_of
from jaxformer.plan.collectives import Collective
from jaxformer.plan.trace import TracedStep
from jaxformer.training.logging.report import bytes_per_device

NETWORK = "network"
_SECONDS_PER_DAY = 86_400


class Shares(NamedTuple):
    """The fraction of each peak that a step reaches."""

    products: float
    """Fraction of the peak FLOP/s in products with parameters and operations fused with them."""
    attention: float
    """Fraction of the peak FLOP/s in attention."""
    overlap: float
    """Fraction of the shorter of computation and communication that overlaps with the longer."""
    memory: float = 0.8
    """Fraction of the memory bandwidth (an assumption)."""
    links: float = 0.8
    """Fraction of the bandwidth of links and network (an assumption)."""


_PRODUCTS = {"v6e": 0.62, "tpu7x": 0.78, "h200": 0.69}
"""Fitted to published step times. Other TPUs and GPUs use the mean of their kind."""
_ATTENTION = 0.25
_OVERLAP = 0.5


def shares_of(chip: Chip) -> Shares:
    """Returns the fractions of a chip's peaks that a step reaches."""
    known = {name: share for name, share in _PRODUCTS.items() if CHIPS[name].kind == chip.kind}
    mean = sum(known.values()) / len(known)
    return Shares(known.get(chip.name, mean), _ATTENTION, _OVERLAP)


@dataclass(frozen=True)
class StepTime:
    """The time of a step."""

    terms: dict[str, float]
    """Seconds of each separate resource: compute, memory, the links of each axis, the network."""
    seconds: float
    """Seconds of the whole step."""
    mfu: float
    """Model FLOPs utilization (MFU): model FLOPs of the step over the peak in that time."""
    tokens_per_second: float
    """Tokens per second of all chips together."""

    @property
    def binding(self) -> str:
        """The resource that needs the most time."""
        return max(self.terms, key=self.terms.__getitem__)

    def days(self, steps: int) -> float:
        """Returns how many days a number of steps takes."""
        return self.seconds * steps / _SECONDS_PER_DAY


def step_time(step: TracedStep) -> StepTime:
    """Returns the time of a step, counting the state of its optimizer."""
    state = step.train_program.state_shapes
    # The state is read and written; the gradient is read for its norm and again for the update.
    moved = 2 * bytes_per_device((state.params, state.opt_state, state.ema, state.params))
    work = replace(work_of(step.config, step.slice), state_bytes=moved)
    return time_of(work, step.slice, vars(step.config.mesh))


def time_of(
    work: Work, slice_: Slice, mesh: Mapping[str, int], shares: Shares | None = None
) -> StepTime:
    """The time of a step that reaches `shares` of the peaks; None: those fitted for the chip."""
    chip = slice_.chip
    shares = shares or shares_of(chip)
    peak = chip.peak_flops.value
    terms = {"compute": work.products / (shares.products * peak)}
    terms["compute"] += work.attention / (shares.attention * peak)
    terms["memory"] = work.state_bytes / (shares.memory * chip.memory_bandwidth.value)
    terms |= _communication(work.collectives, links(slice_, mesh), shares.links)
    sent = sum(seconds for name, seconds in terms.items() if name not in ("compute", "memory"))
    longer = max(terms["compute"], sent)
    shorter = min(terms["compute"], sent)
    seconds = longer + (1 - shares.overlap) * shorter + terms["memory"]
    everything = slice_.num_devices * peak * seconds
    return StepTime(terms, seconds, work.useful / everything, work.tokens / seconds)


class Link(NamedTuple):
    """The interconnect of the devices along a mesh axis."""

    inner: int
    """Number of devices along the axis that are connected by links within a slice or machine."""
    outer: int
    """Number of slices or machines along the axis."""
    bandwidth: float
    """Bytes per second that a device receives through the links."""
    network: float
    """Bytes per second that a device receives through the network."""


def links(slice_: Slice, mesh: Mapping[str, int]) -> dict[str, Link]:
    """Returns the interconnect of the devices along each axis of a mesh.

    The innermost axes, expert, sequence and tensor, get the closest devices. The outermost axis
    that divides over the slices or machines crosses the network.
    """
    chip = slice_.chip
    mesh = {axis: mesh.get(axis, 1) for axis in MESH_AXES}
    network = chip.network_bandwidth.value
    if chip.kind == "gpu":
        left, found = chip.link_domain or 1, {}
        for axis in reversed(MESH_AXES):
            inner = gcd(mesh[axis], left)
            left //= inner
            found[axis] = Link(inner, mesh[axis] // inner, chip.link_bandwidth.value, network)
        return found
    outer, slices = {}, slice_.num_slices
    for axis in MESH_AXES:
        outer[axis] = gcd(mesh[axis], slices)
        slices //= outer[axis]
    inner = {axis: mesh[axis] // outer[axis] for axis in MESH_AXES}
    count = _links_per_device(slice_, inner)
    one_way = chip.link_bandwidth.value
    return {
        axis: Link(inner[axis], outer[axis], one_way * count[axis], network) for axis in MESH_AXES
    }


def _links_per_device(slice_: Slice, mesh: Mapping[str, int]) -> dict[str, float]:
    """Returns the links per device along each axis: two for a ring, else one."""
    left = list(zip(slice_.topology, slice_.wraps, strict=True))
    cores, used = slice_.chip.devices_per_chip, {}
    for axis in sorted(mesh, key=lambda axis: (mesh[axis] == 1, axis != "tensor", mesh[axis])):
        inside = gcd(mesh[axis], cores)
        cores //= inside
        used[axis] = _take(left, mesh[axis] // inside)
    return used


def _take(left: list[tuple[int, bool]], size: int) -> float:
    """Assigns dimensions of the torus to an axis; returns the links per device along it."""
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


def _communication(
    sent: Sequence[Collective], connected: Mapping[str, Link], share: float
) -> dict[str, float]:
    """Returns the seconds of communication over the links of each axis and over the network."""
    terms: dict[str, float] = {}
    for collective in sent:
        used = [connected[axis] for axis in collective.axes]
        inner, outer = (prod(getattr(link, name) for link in used) for name in ("inner", "outer"))
        passes = 2 if collective.kind == "all-reduce" else 1
        if inner > 1:
            name = " + ".join(f"{axis} links" for axis in collective.axes)
            bandwidth = sum(link.bandwidth for link in used if link.inner > 1)
            seconds = passes * collective.bytes * (inner - 1) / inner / (share * bandwidth)
            terms[name] = terms.get(name, 0.0) + seconds
        if outer > 1:
            # Each device of a slice sends its shard to its counterparts in the other slices.
            part = collective.bytes / inner
            network = max(link.network for link in used)
            seconds = passes * part * (outer - 1) / outer / (share * network)
            terms[NETWORK] = terms.get(NETWORK, 0.0) + seconds
    return terms
