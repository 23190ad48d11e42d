"""XLA compiler options for the training step and for the initial state, by platform.

On most CPUs, TPU v4 and TPU v5e no options are set. The limits of scoped memory, the compiler's
rematerialization and the latency estimates of schedulers are never changed, since their best values
depend on the model and the chip.
"""

import re
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxformer.distributed.processor import processor
from jaxformer.errors import ConfigError, first_line

Option = bool | int | str
"""The value of an XLA option."""

# The names of `jax_optimization_level` and XLA's numbers. On a GPU, O1 enables latency hiding,
# pipelined collectives in loops and overlapping loop iterations.
_OPTIMIZATION_LEVEL_O1 = 19

# Along a mesh axis of 64 chips the compiler would otherwise implement a reduce-scatter as an
# all-reduce, with twice the bytes, and likewise all-gathers without a ring of links, without
# overlapping computation. SparseCores run collectives while TensorCores compute, so products need
# not be split into slices around the ring, each with one device's rows of a kernel: a slice of 48
# rows reads the whole other operand, which makes a TPU v6e memory-bound. They also support
# reduce-scatters that TensorCores do not, such as most of those over 256 chips.
_ON_SPARSE_CORES: dict[str, Option] = {
    "xla_tpu_prefer_async_allgather_to_allreduce": True,
    "xla_enable_async_all_gather": True,
    # Chips with SparseCores do not support fusions that overlap a gather with a product.
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
# JAX calls a v5p "TPU v5".
_WITH_SPARSE_CORES = ("TPU v5", "TPU v5p", "TPU v6", "TPU v6 lite", "TPU v6e", "TPU7x")

# On a CPU, XLA leaves products to a library (YNNPACK). With only AVX2, XLA's own are faster for
# bfloat16: steps of five shapes took 0.66 to 1.01 of the time (benchmarks/README.md). For float32
# they are slower where a width is a power of two from 4096 on.
_WITHOUT_YNNPACK: dict[str, Option] = {"xla_cpu_experimental_ynn_fusion_type": ""}

_OWN_PREFIX = {"xla_tpu_": "tpu", "xla_jf_": "tpu", "xla_gpu_": "gpu", "xla_cpu_": "cpu"}
_GIVEN = re.compile(r"(\w+)=(\S+)")
_EXAMPLE = "NAME=VALUE, such as xla_gpu_enable_nccl_user_buffers=true"


def compiler_options(
    mesh: Mesh | AbstractMesh, layer_bytes: int, compute_dtype: str, given: Sequence[str] = ()
) -> dict[str, Option]:
    """Returns the options for a training step on a mesh."""
    kind, platform = device_of(mesh)
    chosen: dict[str, Option] = {}
    if platform == "gpu":
        # With a threshold below the bytes of a layer, the arrays of one layer would be sent
        # separately.
        thresholds = {
            f"xla_gpu_{collective}_combine_threshold_bytes": layer_bytes
            for collective in ("all_gather", "reduce_scatter", "all_reduce")
        }
        chosen = {"optimization_level": _OPTIMIZATION_LEVEL_O1, **thresholds}
    elif has_sparse_cores(kind):
        chosen = _ON_SPARSE_CORES
    elif platform == "cpu" and compute_dtype == "bfloat16" and _has_avx2_alone():
        chosen = _WITHOUT_YNNPACK
    return chosen | {
        name: value for name, value in parsed(given).items() if _applies_to(name, platform)
    }


def init_options(mesh: Mesh | AbstractMesh) -> dict[str, Option]:
    """Returns the options for the program that creates the initial state, which runs once.

    Random numbers are long programs. On a CPU, LLVM's first level takes a third of the time for
    them and gives the same bits.
    """
    is_cpu = device_of(mesh)[1] == "cpu"
    optimizes = is_cpu and not jax.config.read("jax_disable_most_optimizations")
    return {"xla_backend_optimization_level": 1} if optimizes else {}


def _has_avx2_alone() -> bool:
    """Whether the processor has AVX2 and not AVX-512."""
    return {"avx2", "avx512f"} & processor().features == {"avx2"}


def has_sparse_cores(device_kind: str) -> bool:
    """Whether a chip has SparseCores, according to its `jax.Device.device_kind`."""
    return device_kind in _WITH_SPARSE_CORES


def device_of(mesh: Mesh | AbstractMesh) -> tuple[str, str]:
    """Returns the kind and the platform ("cpu", "gpu", "tpu") of a mesh's devices, if known."""
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else mesh.abstract_device
    platform = getattr(device, "platform", None) or jax.default_backend()
    return getattr(device, "device_kind", ""), platform


def parsed(given: Sequence[str]) -> dict[str, Option]:
    """Parses options "NAME=VALUE"."""
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
    """Checks with the local compiler that it knows the options for its platform."""
    for name, value in parsed(given).items():
        if not _applies_to(name, jax.default_backend()):
            continue
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError as error:
            reason = first_line(error).removeprefix("INVALID_ARGUMENT: ")
            raise ConfigError(
                f"train.compiler_options = '{name}={value}': must be an XLA option on a "
                f"{jax.default_backend()} ({reason}); correct it or leave it out"
            ) from error


def _applies_to(name: str, platform: str) -> bool:
    """Whether an option applies to a platform; names without a platform apply to all."""
    own = [of for prefix, of in _OWN_PREFIX.items() if name.startswith(prefix)]
    return not own or platform in own
