"""Options of XLA: each platform gets its own, and a wrong one is a sentence."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from jaxformer.config import TrainConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.compiler_options import (
    check_options,
    compiler_options,
    init_options,
    parsed,
)
from jaxformer.distributed.processor import Processor
from jaxformer.errors import ConfigError

EVERYWHERE = ("xla_gpu_enable_nccl_user_buffers=true", "xla_tpu_scoped_vmem_limit_kib=65536")
LAYER = 12_345_678
DTYPE = "bfloat16"


def mesh_of(kind, platform):
    explicit = (AxisType.Explicit,) * 3
    axes = ("data", "fsdp", "tensor")
    device = AbstractDevice(kind, 1, platform)
    return AbstractMesh((1, 4, 1), axes, axis_types=explicit, abstract_device=device)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("features", [{"avx2"}, {"avx2", "avx512f"}, {"asimd"}, set()])
def test_a_cpu_with_avx2_alone_multiplies_bfloat16_without_ynnpack(monkeypatch, features, dtype):
    found = Processor("any", frozenset(features))
    monkeypatch.setattr("jaxformer.distributed.compiler_options.processor", lambda: found)
    options = compiler_options(make_mesh(MeshConfig()), LAYER, dtype, EVERYWHERE)
    assert bool(options) == (features == {"avx2"} and dtype == "bfloat16")
    x = np.ones((32, 64), dtype)

    @partial(jax.jit, compiler_options=options or None)
    def product(x):
        return jax.lax.dot(x, x.T, preferred_element_type=np.float32)

    program = product.lower(x).compile()
    assert not options or "ynn_fusion" not in program.as_text()
    np.testing.assert_array_equal(program(x), np.full((32, 32), 64.0))


@pytest.mark.optimized
def test_the_initial_state_has_the_bits_of_any_optimization():
    options = init_options(make_mesh(MeshConfig()))
    assert options

    def drawn(key):
        return jax.random.truncated_normal(key, -2.0, 2.0, (37, 129))

    found, expected = (
        jax.jit(drawn, compiler_options=each)(jax.random.key(0)) for each in (options, None)
    )
    np.testing.assert_array_equal(found, expected)
    assert not init_options(mesh_of("TPU v6 lite", "tpu"))


def test_a_gpu_sends_the_arrays_of_a_layer_together():
    options = compiler_options(mesh_of("NVIDIA H100 80GB HBM3", "gpu"), LAYER, DTYPE, EVERYWHERE)
    assert options.pop("optimization_level") == 19
    assert options.pop("xla_gpu_enable_nccl_user_buffers") is True
    assert set(options.values()) == {LAYER}
    # The compiler of this machine knows the names, though it has no GPU to use them for.
    check_options([f"{name}={value}" for name, value in options.items()])


@pytest.mark.parametrize("kind", ["TPU v5", "TPU v6 lite", "TPU7x"])
def test_a_tpu_with_sparse_cores_gathers_beside_its_products(kind):
    options = compiler_options(mesh_of(kind, "tpu"), LAYER, DTYPE, EVERYWHERE)
    assert options["xla_tpu_prefer_async_allgather_to_allreduce"] is True
    assert options["xla_tpu_enable_windowed_einsum_for_reduce_scatter"] is False
    assert options["xla_tpu_scoped_vmem_limit_kib"] == 65536
    assert not any("gpu" in name for name in options)
    off = ("xla_enable_async_all_gather=false",)
    assert compiler_options(mesh_of(kind, "tpu"), LAYER, DTYPE, off)[off[0].split("=")[0]] is False
    assert compiler_options(mesh_of("TPU v5 lite", "tpu"), LAYER, DTYPE) == {}


def test_values_are_numbers_truths_or_words():
    given = ("a=1", "b=-20", "c=True", "d=false", "e=rematerialization,fusion")
    expected = {"a": 1, "b": -20, "c": True, "d": False, "e": "rematerialization,fusion"}
    assert parsed(given) == expected


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match=r"compiler_options = 'xla_cpu_x'"):
        TrainConfig(compiler_options=("xla_cpu_x",))
    with pytest.raises(ConfigError, match=r"'xla_cpu_wrong=1'"):
        check_options(("xla_cpu_wrong=1",))
    with pytest.raises(ConfigError, match="not a valid bool"):
        check_options(("xla_cpu_enable_fast_math=perhaps",))
    check_options(("xla_cpu_enable_fast_math=false", *EVERYWHERE))
