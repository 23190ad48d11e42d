"""What the TPU compiler makes of the chosen options: shards move beside the products."""

import importlib.util
import math
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.compiler_options import compiler_options
from jaxformer.distributed.slices import parse_chips
from jaxformer.functional import causal
from jaxformer.nn import Context, Linear, Stack
from jaxformer.nn.config import RematNames
from jaxformer.nn.layers import normal
from jaxformer.plan.compiler import topology_devices

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu"),
]


class Toy(nnx.Module):
    """A block that compiles quickly."""

    def __init__(self, key):
        self.linear = Linear(key, {"embed": 1024}, {"mlp": 1024}, normal(0.02))

    def __call__(self, x, context, key):
        return x + jnp.tanh(self.linear(x))


def mesh_over(name):
    return make_mesh(MeshConfig(fsdp=-1), topology_devices(parse_chips(name)))


@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_every_kind_of_chip_accepts_its_options(name):
    mesh = mesh_over(name)
    rows, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("fsdp"), PartitionSpec()))
    x = jax.ShapeDtypeStruct((128, 128), jnp.float32, sharding=rows)
    options = compiler_options(mesh, 2**20, "bfloat16")
    gather = jax.jit(lambda x: x + 1.0, out_shardings=whole, compiler_options=options or None)
    assert gather.lower(x).compile().memory_analysis().output_size_in_bytes >= 128 * 128 * 4
    assert bool(options) == (name[:3] in ("v5p", "v6e", "tpu"))


def test_offloaded_activations_wait_in_the_memory_of_the_host():
    mesh, rows, length, layers = mesh_over("v5e:2x2"), 8, 16384, 8
    stack = jax.eval_shape(lambda: Stack(jax.random.key(0), layers, (Toy,)))
    everywhere = NamedSharding(mesh, PartitionSpec())
    stack = jax.tree.map(lambda leaf: leaf.update(sharding=everywhere), stack)
    sharding = NamedSharding(mesh, PartitionSpec("fsdp", None, None))
    x = jax.ShapeDtypeStruct((rows, length, 1024), jnp.bfloat16, sharding=sharding)

    def memory(remat):
        def total(stack, x):
            context = Context(jnp.arange(length)[None], causal())
            return jnp.sum(stack(x, context, None, remat=remat).astype(jnp.float32) ** 2)

        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return jax.jit(jax.grad(total)).lower(stack, x).compile().memory_analysis()

    full, offloaded = memory("full"), memory(RematNames(offload=("block_input",)))
    inputs = math.prod((layers, rows // 4, length, 1024, 2))
    assert full.host_temp_size_in_bytes == 0
    assert offloaded.host_temp_size_in_bytes >= inputs
    # The inputs do not fit the vector memory. Two or three of them are on the device at a time.
    assert full.temp_size_in_bytes - offloaded.temp_size_in_bytes > 0.5 * inputs
    assert offloaded.peak_memory_in_bytes < full.peak_memory_in_bytes


@pytest.mark.parametrize("name", ["v5p:4x4x4", "v6e:16x16"])
def test_parameters_are_gathered_and_gradients_scattered_as_such(tmp_path, name):
    mesh = mesh_over(name)
    spec, whole = PartitionSpec(None, "fsdp", None), PartitionSpec(None, None)

    def updated(kernels, x):
        def layer(h, kernel):
            kernel = jax.sharding.reshard(kernel.astype(jnp.bfloat16), whole)
            return jnp.tanh(h @ kernel), None

        def total(kernels):
            h, _ = jax.lax.scan(jax.checkpoint(layer), x, kernels)
            return jnp.sum(h.astype(jnp.float32) ** 2)

        return kernels - jax.grad(total)(kernels)

    kernels = jax.ShapeDtypeStruct((8, 2048, 2048), "float32", sharding=NamedSharding(mesh, spec))
    rows = NamedSharding(mesh, PartitionSpec("fsdp", None, None))
    x = jax.ShapeDtypeStruct((512, 512, 2048), jnp.bfloat16, sharding=rows)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = jax.jit(updated).lower(kernels, x)

    plain = lowered.compile().as_text()
    assert len(re.findall(r"\[2048,2048\]\S* all-reduce\(", plain)) == 1
    assert "reduce-scatter(" not in plain
    # JAX's own parser cannot read back what this makes, so the compiler writes it to a file.
    dump = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True}
    lowered.compile(compiler_options=compiler_options(mesh, 2**20, "bfloat16") | dump)
    (file,) = tmp_path.glob("*after_optimizations.txt")
    text = file.read_text()
    assert len(re.findall(r" all-gather\(", text)) == 2
    assert len(re.findall(r" reduce-scatter\(", text)) == 1
    assert not re.findall(r"\[2048,2048\]\S* all-reduce\(", text)
    assert len(re.findall(r" async-done\(", text)) >= 3
