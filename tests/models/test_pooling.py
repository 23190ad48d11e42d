"""One state per sequence, on one device and on several."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.functional.arrays import on_mesh
from jaxformer.models.heads.base import pool

HIDDEN = np.random.default_rng(0).standard_normal((4, 6, 5), np.float32)
PADDED = np.array([[1] * 6, [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]], bool)
ROWS = ("data", "fsdp")


@pytest.mark.parametrize("valid", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-6), ("bfloat16", 2**-8)])
def test_the_state_of_a_sequence(dtype, rounding, pooling, valid):
    hidden = jnp.asarray(HIDDEN, dtype)
    pooled = pool(hidden, None if valid is None else jnp.asarray(valid), pooling)
    assert pooled.dtype == dtype
    for row, states in enumerate(np.asarray(hidden, np.float64)):
        real = states if valid is None else states[valid[row]]
        expected = {"first": real[0], "last": real[-1], "mean": real.mean(0)}[pooling]
        found = np.asarray(pooled[row], np.float64)
        np.testing.assert_allclose(found, expected, rtol=rounding, atol=1e-6)
    if valid is None:
        np.testing.assert_array_equal(pool(hidden, jnp.ones((4, 6), bool), pooling), pooled)


@pytest.mark.parametrize("valid", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("time", [None, "sequence"])
def test_rows_and_tokens_may_be_on_several_devices(time, pooling, valid):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, sequence=2))
    hidden = jax.device_put(HIDDEN, NamedSharding(mesh, P(ROWS, time, None)))
    if valid is not None:
        valid = jax.device_put(valid, NamedSharding(mesh, P(ROWS, None)))

    def total(hidden, valid):
        return jnp.sum(pool(hidden, valid, pooling) ** 2)

    with on_mesh(mesh):
        pooled = jax.jit(pool, static_argnums=2)(hidden, valid, pooling)
        gradient = jax.jit(jax.grad(total))(hidden, valid)
    assert pooled.sharding.spec == P(ROWS, None)
    one = jnp.asarray(HIDDEN), None if valid is None else jnp.asarray(PADDED)
    np.testing.assert_allclose(pooled, pool(*one, pooling), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradient, jax.grad(total)(*one), rtol=1e-6, atol=1e-6)
