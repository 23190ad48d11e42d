"""Accelerator specifications: peak FLOP/s, memory and links, each with its source and date."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal, NamedTuple

from jaxformer.errors import ArgumentError, did_you_mean

GIB, _MIB = 2**30, 2**20


class Figure(NamedTuple):
    """A number and its source."""

    value: float
    """In bytes, bytes per second or FLOP per second."""
    source: str
    """An address, or how it was measured."""
    date: str = "2026-11"
    """When the source was read or the measurement made."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """An accelerator. Figures are per JAX device, of which a chip may have two."""

    name: str
    """"v5p", "h100", ..."""
    kind: Literal["tpu", "gpu"]
    """Its platform in JAX."""
    device_kind: str
    """A substring of `jax.Device.device_kind`."""
    devices_per_chip: int = 1
    """JAX devices per chip: 2 if each core is a device."""
    chips_per_host: int
    """Chips per machine in slices of several machines."""
    peak_flops: Figure
    """Dense bfloat16 FLOP/s, without sparsity."""
    memory: Figure
    """Bytes of device memory that a program may use."""
    memory_bandwidth: Figure
    """Memory bandwidth of the device in bytes per second."""
    link_bandwidth: Figure
    """Bytes per second one way: of one ICI link of a TPU, of all NVLinks of a GPU together."""
    network_bandwidth: Figure
    """Bytes per second one way through the data centre's network."""
    vector_memory: Figure | None = None
    """Bytes of on-chip memory available to a program's arrays, or None."""
    torus_dimensions: int = 0
    """Dimensions of a TPU's torus, with two links each; 0 if a switch connects all devices."""
    link_domain: int | None = None
    """Number of chips connected by NVLink; None for a TPU, whose links connect a whole slice."""

    @property
    def figures(self) -> dict[str, Figure]:
        """Every figure with a source, by field name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Figure)}


_DOCS = "https://docs.cloud.google.com/tpu/docs/"
_BOOK = "https://jax-ml.github.io/scaling-book/tpus/"
_NVL72 = "gb200-nvl72/"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_COMPILER = "the limit in libtpu 0.0.52's message E1000 (CompileTimeHbmOom)"
_ASSIGNED = "the most that libtpu 0.0.52 assigns of it to the arrays of a training step"
GPU_MEMORY_FRACTION = 0.9
"""The fraction of GPU memory that JAX may use, as set by XLA_PYTHON_CLIENT_MEM_FRACTION."""
_SHARE = (
    f"of it, XLA_PYTHON_CLIENT_MEM_FRACTION={GPU_MEMORY_FRACTION} as in "
    "https://github.com/NVIDIA/JAX-Toolbox/blob/main/docs/GPU_performance.md"
)


def _docs(value: float, page: str) -> Figure:
    return Figure(value, _DOCS + page)


_tpu = partial(Chip, kind="tpu", chips_per_host=4)
_TPUS = (
    _tpu(
        name="v4",
        device_kind="TPU v4",
        peak_flops=_docs(275e12, "v4"),
        memory=Figure(30.75 * GIB, _COMPILER),
        memory_bandwidth=_docs(1200e9, "v4"),
        link_bandwidth=Figure(45e9, _BOOK),
        network_bandwidth=_docs(50e9 / 8, "v5p (none is published for v4)"),
        torus_dimensions=3,
    ),
    _tpu(
        name="v5e",
        device_kind="TPU v5 lite",
        peak_flops=_docs(197e12, "v5e"),
        memory=Figure(15.75 * GIB, _COMPILER),
        memory_bandwidth=_docs(819e9, "v5e"),
        link_bandwidth=Figure(45e9, _BOOK),
        network_bandwidth=_docs(6.4e12 / 8 / 256, "v5e"),
        vector_memory=Figure(112 * _MIB, _ASSIGNED),
        torus_dimensions=2,
    ),
    _tpu(
        name="v5p",
        device_kind="TPU v5",
        peak_flops=_docs(459e12, "tpu7x"),
        memory=Figure(95.73 * GIB, _COMPILER),
        memory_bandwidth=_docs(2765e9, "v5p"),
        link_bandwidth=Figure(90e9, _BOOK),
        network_bandwidth=_docs(50e9 / 8, "v5p"),
        vector_memory=Figure(48 * _MIB, _ASSIGNED),
        torus_dimensions=3,
    ),
    _tpu(
        name="v6e",
        device_kind="TPU v6",
        peak_flops=_docs(918e12, "v6e"),
        memory=Figure(31.24 * GIB, _COMPILER),
        memory_bandwidth=_docs(1638e9, "v6e"),
        link_bandwidth=Figure(90e9, _BOOK),
        network_bandwidth=_docs(100e9 / 8, "tpu7x"),
        vector_memory=Figure(96 * _MIB, _ASSIGNED),
        torus_dimensions=2,
    ),
    # The two cores of a chip, each a device, share its memory, links and network.
    _tpu(
        name="tpu7x",
        device_kind="TPU7x",
        devices_per_chip=2,
        peak_flops=_docs(2307e12 / 2, "tpu7x"),
        memory=Figure(94.74 * GIB, _COMPILER),
        memory_bandwidth=_docs(7380e9 / 2, "tpu7x"),
        link_bandwidth=_docs(1200e9 / 2 / 6 / 2, "tpu7x"),
        network_bandwidth=_docs(100e9 / 8 / 2, "tpu7x"),
        vector_memory=Figure(32 * _MIB, _ASSIGNED),
        torus_dimensions=3,
    ),
)


def _gpu(
    name: str,
    page: str,
    *figures: float,
    network_page: str | None = None,
    chips_per_host: int = 8,
    link_domain: int = 8,
) -> Chip:
    """Returns a GPU with the figures of an NVIDIA page, in the order of the table."""
    flops, memory, bandwidth, link, network = figures

    def figure(value: float, page: str = page) -> Figure:
        return Figure(value, _NVIDIA + page)

    return Chip(
        name=name,
        kind="gpu",
        device_kind=name.upper(),
        chips_per_host=chips_per_host,
        peak_flops=figure(flops),
        memory=figure(GPU_MEMORY_FRACTION * memory, f"{page}; {_SHARE}"),
        memory_bandwidth=figure(bandwidth),
        link_bandwidth=figure(link),
        network_bandwidth=figure(network / 8, network_page or page),
        link_domain=link_domain,
    )


# FLOP/s, bytes of memory, its bytes per second, those of NVLink, and the network's bits per second.
_GPUS = (
    _gpu("a100", "a100/", 312e12, 80e9, 2039e9, 300e9, 200e9, network_page="dgx-a100/"),
    _gpu("h100", "h100/", 989e12, 80e9, 3350e9, 450e9, 400e9, network_page="dgx-h100/"),
    _gpu("h200", "h200/", 989e12, 141e9, 4800e9, 450e9, 400e9, network_page="dgx-h200/"),
    _gpu("b200", "dgx-b200/", 2250e12, 180e9, 8000e9, 900e9, 400e9),
    _gpu("gb200", _NVL72, 2500e12, 186e9, 8000e9, 900e9, 400e9, chips_per_host=4, link_domain=72),
)
CHIPS = {chip.name: chip for chip in (*_TPUS, *_GPUS)}
"""Every chip known to the planner, by name."""


def find_chip(name: str) -> Chip:
    """Returns the chip with a name."""
    if name.lower() not in CHIPS:
        hint = did_you_mean(name.lower(), CHIPS)
        raise ArgumentError(f"chip = {name!r}: must be one of {', '.join(CHIPS)}{hint}")
    return CHIPS[name.lower()]
