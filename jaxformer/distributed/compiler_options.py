"""What XLA is asked of a training step, by platform, and why.

A CPU, a TPU v4 and a TPU v5e get nothing: there the compiler's own choices are left alone. So are,
everywhere, the limits of scoped memory, the compiler's own rematerialisation and the schedulers'
estimates of latency: their best values belong to one model on one chip.
"""

import re
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxformer.errors import ConfigError

Option = bool | int | str
"""The value of an option of XLA."""

# The names of `jax_optimization_level`, as XLA counts them. O1 on a GPU schedules by latency,
# pipelines the collectives of loops and lets two turns of a loop overlap.
_OPTIMIZATION_LEVEL_O1 = 19

# Along one mesh axis of 64 chips the compiler would otherwise scatter a gradient by reducing all of
# it everywhere, twice the bytes, and gather so too where the links make no ring; and nothing
# computes meanwhile. SparseCores move shards while TensorCores compute, so products need not go
# around the ring of an axis in slices, each as wide as a device's rows of a kernel: a slice of 48
# rows reads the whole other operand and keeps a TPU v6e waiting for its memory. And they scatter
# what the collectives of TensorCores cannot: much of what 256 chips share.
_ON_SPARSE_CORES: dict[str, Option] = {
    "xla_tpu_prefer_async_allgather_to_allreduce": True,
    "xla_enable_async_all_gather": True,
    # Chips with SparseCores do not support fusions that continue a gather beside a product.
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": False,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": True,
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": True,
    "xla_tpu_check_legacy_constraints_in_reduce_scatter_legalizer": False,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_tpu_enable_windowed_einsum_for_all_gather": False,
    "xla_tpu_enable_windowed_einsum_for_reduce_scatter": False,
}
# A "TPU v5" is a v5p.
_WITH_SPARSE_CORES = ("TPU v5", "TPU v5p", "TPU v6", "TPU v6 lite", "TPU v6e", "TPU7x")

_OWN_PREFIX = {"xla_tpu_": "tpu", "xla_jf_": "tpu", "xla_gpu_": "gpu", "xla_cpu_": "cpu"}
_GIVEN = re.compile(r"(\w+)=(\S+)")
_EXAMPLE = "NAME=VALUE, such as xla_gpu_enable_nccl_user_buffers=true"


def compiler_options(
    mesh: Mesh | AbstractMesh, layer_bytes: int, given: Sequence[str] = ()
) -> dict[str, Option]:
    """The options for a training step on a mesh."""
    kind, platform = device_of(mesh)
    chosen: dict[str, Option] = {}
    if platform == "gpu":
        # Below the bytes of a layer the arrays of one layer would be sent apart.
        thresholds = {
            f"xla_gpu_{collective}_combine_threshold_bytes": layer_bytes
            for collective in ("all_gather", "reduce_scatter", "all_reduce")
        }
        chosen = {"optimization_level": _OPTIMIZATION_LEVEL_O1, **thresholds}
    elif has_sparse_cores(kind):
        chosen = _ON_SPARSE_CORES
    return chosen | {name: value for name, value in parsed(given).items() if _is_of(name, platform)}


def has_sparse_cores(device_kind: str) -> bool:
    """Whether a chip has SparseCores, by its `jax.Device.device_kind`."""
    return device_kind in _WITH_SPARSE_CORES


def device_of(mesh: Mesh | AbstractMesh) -> tuple[str, str]:
    """The kind and the platform ("cpu", "gpu", "tpu") of a mesh's devices, as far as known."""
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else mesh.abstract_device
    platform = getattr(device, "platform", None) or jax.default_backend()
    return getattr(device, "device_kind", ""), platform


def parsed(given: Sequence[str]) -> dict[str, Option]:
    """Options "NAME=VALUE" by name."""
    options: dict[str, Option] = {}
    for entry in given:
        if not (match := _GIVEN.fullmatch(entry)):
            raise ConfigError(f"train.compiler_options = {entry!r}: must be {_EXAMPLE}")
        name, word = match.groups()
        whole = re.fullmatch(r"-?\d+", word)
        words: Mapping[str, Option] = {"true": True, "false": False}
        options[name] = int(word) if whole else words.get(word.lower(), word)
    return options


def check_options(given: Sequence[str]) -> None:
    """Asks the compiler of this machine whether it knows the options that are for it."""
    for name, value in parsed(given).items():
        if not _is_of(name, jax.default_backend()):
            continue
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
            raise ConfigError(
                f"train.compiler_options = '{name}={value}': must be an option of XLA on a "
                f"{jax.default_backend()} ({reason}); correct it or leave it out"
            ) from error


def _is_of(name: str, platform: str) -> bool:
    """Whether an option is for a platform; names without one are for all."""
    own = [of for prefix, of in _OWN_PREFIX.items() if name.startswith(prefix)]
    return not own or platform in own
