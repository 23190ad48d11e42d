"""The names of accelerators in Google Cloud."""

from dataclasses import dataclass

from jaxformer.distributed.chips import Chip
from jaxformer.distributed.slices import Slice, slices_of
from jaxformer.errors import ArgumentError


@dataclass(frozen=True)
class GoogleNames:
    """The names of a chip in Google Kubernetes Engine and, for TPUs, in the Cloud TPU API."""

    accelerator: str
    """The node label: gke-tpu-accelerator or gke-accelerator."""
    machine: str
    """The machine type of a node pool."""
    vm: str | None = None
    """The accelerator type without its size; None if not in the Cloud TPU API."""
    cores: int = 1
    """Units per chip in the size of an accelerator type."""
    runtime: str | None = None
    """The software version of a TPU VM."""


# From the table of https://github.com/AI-Hypercomputer/xpk
# (src/xpk/core/system_characteristics.py) and that of https://github.com/apple/axlearn, 2026-11;
# Google's own: https://docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
_NAMES = {
    "v4": GoogleNames("tpu-v4-podslice", "ct4p-hightpu-4t", "v4", 2, "tpu-ubuntu2204-base"),
    "v5e": GoogleNames(
        "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", "v5litepod", 1, "v2-alpha-tpuv5-lite"
    ),
    "v5p": GoogleNames("tpu-v5p-slice", "ct5p-hightpu-4t", "v5p", 2, "v2-alpha-tpuv5"),
    "v6e": GoogleNames("tpu-v6e-slice", "ct6e-standard-4t", "v6e", 1, "v2-alpha-tpuv6e"),
    "tpu7x": GoogleNames("tpu7x", "tpu7x-standard-4t"),
    "a100": GoogleNames("nvidia-a100-80gb", "a2-ultragpu-8g"),
    "h100": GoogleNames("nvidia-h100-80gb", "a3-highgpu-8g"),
    "h200": GoogleNames("nvidia-h200-141gb", "a3-ultragpu-8g"),
    "b200": GoogleNames("nvidia-b200", "a4-highgpu-8g"),
    "gb200": GoogleNames("nvidia-gb200", "a4x-highgpu-4g"),
}
_ONE_CHIP = {"v5e": "ct5lp-hightpu-1t", "v6e": "ct6e-standard-1t"}


def google_names(chip: Chip) -> GoogleNames:
    """Returns Google's names for a chip."""
    if chip.name not in _NAMES:
        raise ArgumentError(f"chips: must be one of {', '.join(_NAMES)} on Google's cloud")
    return _NAMES[chip.name]


def machine_type(slices: Slice) -> str:
    """Returns the machine type of the node pools of a slice."""
    if slices.chips == slices.num_slices and slices.chip.name in _ONE_CHIP:
        return _ONE_CHIP[slices.chip.name]
    return google_names(slices.chip).machine


def accelerator_type(slices: Slice) -> str:
    """Returns the accelerator type of each slice in the Cloud TPU API: "v5p-128" for v5p:4x4x4."""
    names, chip = google_names(slices.chip), slices.chip
    if names.vm is None:
        raise ArgumentError(
            f"chips = {slices.name!r}: must be TPUs of the Cloud TPU API, v4 to v6e; use "
            "`launch jobset`"
        )
    each = slices.chips // slices.num_slices
    usual = next(s for s in slices_of(chip) if s.chips == each)
    if usual.topology != slices.topology:
        raise ArgumentError(
            f"chips = {slices.name!r}: must be {usual.name}, the topology of {each} chips in the "
            "Cloud TPU API; `launch jobset` supports others"
        )
    return f"{names.vm}-{each * names.cores}"
