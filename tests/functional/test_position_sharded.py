"""Positional schemes on a mesh: the same numbers, in the shardings of what they were given."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from position_cases import IDS, SCHEMES, N, S, T, arrays, outputs, table_of

from jaxformer.functional import ALiBi, Bias, Learned, Learned2D, PatchBias, T5Bias

pytestmark = pytest.mark.more

BATCH = ("data", "fsdp")
SPECS = {
    "x": P(BATCH, None, None),
    "query": P(BATCH, None, "tensor", None),
    "key": P(BATCH, None, "tensor", None),
    "query_positions": P(BATCH, None),
    "key_positions": P(BATCH, None),
}
TABLE_SPECS = {
    **dict.fromkeys((Learned, Learned2D), P(None, "fsdp")),
    **dict.fromkeys((T5Bias, PatchBias), P(None, "tensor")),
}


def on_eight_devices():
    axes = ("data", "fsdp", "tensor")
    return jax.set_mesh(jax.make_mesh((2, 2, 2), axes, axis_types=(AxisType.Explicit,) * 3))


def summed(scheme, table, arrays):
    leaves = jax.tree.leaves(outputs(scheme, table, **arrays))
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves)


@pytest.mark.parametrize("positions", ["sharded", "replicated", "one row"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
@pytest.mark.quick(
    "ALiBi*-sharded",
    "T5Bias*-sharded",
    "Learned*-sharded",
    "PatchBias*-sharded",
    "RoPE(max_length=None, theta=500000*-sharded",
)
def test_explicit_sharding_equals_no_mesh(scheme, positions):
    a, table = arrays(), table_of(scheme)
    if positions == "one row":
        a |= {"query_positions": jnp.arange(T)[None], "key_positions": jnp.arange(S)[None]}
    expected = jax.jit(partial(outputs, scheme))(table, **a)
    specs = SPECS
    if positions != "sharded":
        specs = SPECS | {"query_positions": P(None, None), "key_positions": P(None, None)}
    with on_eight_devices():
        if table is not None:
            table = jax.device_put(table, TABLE_SPECS[type(scheme)])
        got = jax.jit(partial(outputs, scheme))(table, **jax.tree.map(jax.device_put, a, specs))
        embedded, (query, key), bias = got
        assert jax.typeof(embedded).sharding.spec == SPECS["x"]
        assert jax.typeof(query).sharding.spec == SPECS["query"]
        assert jax.typeof(key).sharding.spec == SPECS["key"]
        if bias is not None and positions == "sharded":
            heads = "tensor" if isinstance(scheme, T5Bias | PatchBias) else None
            assert jax.typeof(bias).sharding.spec == P(BATCH, heads, None, None)
        chex.assert_trees_all_close(jax.device_get(got), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scheme", [Learned(32), T5Bias(bidirectional=True), PatchBias((5, 7))])
def test_explicit_sharding_gives_the_same_table_gradient(scheme):
    a, table = arrays(), table_of(scheme)
    expected = jax.jit(jax.grad(lambda t: summed(scheme, t, a)))(table)
    spec = TABLE_SPECS[type(scheme)]
    with on_eight_devices():
        placed = jax.device_put(table, spec), jax.tree.map(jax.device_put, a, SPECS)
        gradient = jax.jit(jax.grad(lambda t, a: summed(scheme, t, a)))(*placed)
        assert jax.typeof(gradient).sharding.spec == spec
        np.testing.assert_allclose(jax.device_get(gradient), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [ALiBi(), T5Bias(bidirectional=True), PatchBias((5, 7))])
def test_bias_inside_shard_map(scheme):
    """Attention in blocks runs on local heads and rows."""
    a = arrays()
    bias = scheme.bias(
        a["query_positions"], a["key_positions"], num_heads=N, table=table_of(scheme)
    )
    expected = bias.values()
    heads = P(*[None] * (bias.heads.ndim - 1), "tensor")
    specs = dataclasses.replace(
        bias, heads=heads, query_positions=P(BATCH, None), key_positions=P(BATCH, None)
    )
    with on_eight_devices():
        placed = jax.tree.map(jax.device_put, bias, specs)
        values = jax.jit(
            jax.shard_map(Bias.values, in_specs=(specs,), out_specs=P(BATCH, "tensor", None, None))
        )(placed)
        np.testing.assert_array_equal(jax.device_get(values), expected)
