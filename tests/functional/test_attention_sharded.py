from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BOTH, arrays, assert_trees_close, make_bias, value_and_gradients
from jax.sharding import AxisType, PartitionSpec

from jaxformer.functional import (
    Bias,
    DenseMask,
    KeyPadding,
    Prefix,
    Segments,
    attention,
    causal,
)

P = PartitionSpec
BATCH, T, S = 4, 20, 137
ROWS, HEADS = ("data", "fsdp"), "tensor"


def mesh(axis_type=AxisType.Explicit):
    return jax.make_mesh((2, 2, 2), (*ROWS, HEADS), axis_types=(axis_type,) * 3)


def padding_and_offsets():
    random = np.random.default_rng(1)
    valid = jnp.arange(S)[None] < random.integers(1, S, (BATCH, 1))
    return causal(jnp.asarray(random.integers(0, S, BATCH))) & KeyPadding(valid)


def documents():
    key = np.sort(np.random.default_rng(2).integers(0, 4, (BATCH, S)), axis=1)
    dense = DenseMask(jnp.ones((1, T, S), bool).at[:, 3].set(False))
    return Segments(jnp.asarray(key[:, -T:]), jnp.asarray(key)) & dense & causal(S - T)


def sharded(inputs, cotangent, mask, bias, whole_mask=False):
    """The same arrays, rows and heads over the mesh; `whole_mask`: the mask's are not."""

    def place(x, *spec):
        return jax.device_put(x, P(*spec))

    *inputs, cotangent = (
        place(x, ROWS, None, HEADS if x.shape[2] > 1 else None, None) for x in (*inputs, cotangent)
    )
    if not whole_mask:
        row = {BATCH: ROWS, 1: None}
        mask = jax.tree.map(lambda x: place(x, row[x.shape[0]], *[None] * (x.ndim - 1)), mask)
    if isinstance(bias, Bias):
        bias = replace(bias, heads=place(bias.heads, None, HEADS))
    return tuple(inputs), cotangent, mask, bias


DROPOUT = {"dropout_rate": 0.2}
CASES = {
    "grouped heads, T5": ("blockwise", (4, 2), padding_and_offsets, ("t5",), DROPOUT),
    "one key head": ("blockwise", (2, 1), documents, ("array", (1, 2)), {"softcap": 2.0}),
    "bias for each row": ("blockwise", (2, 2), lambda: None, ("array", (BATCH, 1)), {}),
    "reference": ("reference", (4, 2), documents, ("t5",), DROPOUT),
    "prefix": ("reference", (2, 1), lambda: Prefix(jnp.arange(BATCH), 3), (None,), {}),
}


@pytest.mark.parametrize(
    ("name", "whole_mask"), [*((name, False) for name in CASES), ("one key head", True)]
)
@pytest.mark.quick("grouped heads, T5-*", "prefix-*", "bias for each row-*")
def test_sharded_equals_whole(name, whole_mask):
    implementation, heads, make_mask, (bias, *shape), options = CASES[name]
    options = {"dropout_key": jax.random.key(3), **options}
    *inputs, cotangent = arrays(T, S, heads, batch=BATCH)
    problem = inputs, cotangent, make_mask(), make_bias(bias, T, S, heads[0], *shape)

    def run(inputs, cotangent, mask, bias):
        return value_and_gradients(implementation, inputs, cotangent, bias, mask, **options)

    expected = run(*problem)
    with jax.set_mesh(mesh()):
        placed = sharded(*problem, whole_mask=whole_mask)
        actual = run(*placed)
    output, (gradients, of_bias) = actual
    # The same dropout too, or nothing would agree.
    assert_trees_close(actual, expected, 2e-5)
    assert output.sharding.spec == P(ROWS, None, HEADS, None)
    for x, gradient in zip(placed[0], gradients, strict=True):
        assert gradient.sharding == x.sharding
    if isinstance(placed[3], Bias):
        assert of_bias.sharding == placed[3].heads.sharding


@BOTH
def test_sinks_are_those_of_each_devices_heads(implementation):
    *inputs, cotangent = arrays(T, S, (6, 2), batch=BATCH)
    sinks = jnp.linspace(-2.0, 2.0, 6)

    @jax.jit
    def run(inputs, sinks, cotangent, mask):
        def attend(inputs, sinks):
            options = {"mask": mask, "sinks": sinks}
            return attention(*inputs, implementation=implementation, **options)

        output, pull = jax.vjp(attend, inputs, sinks)
        weights = attention(*inputs, mask=mask, sinks=sinks, return_weights=True)[1]
        return output, pull(cotangent), weights

    problem = tuple(map(jnp.asarray, inputs)), jnp.asarray(cotangent), padding_and_offsets()
    expected = run(problem[0], sinks, *problem[1:])
    with jax.set_mesh(mesh()):
        inputs, cotangent, mask, _ = sharded(*problem, None)
        actual = run(inputs, jax.device_put(sinks, P(HEADS)), cotangent, mask)
    assert_trees_close(actual, expected, 2e-5)
    assert actual[1][1].sharding.spec == P(HEADS)
    assert actual[2].sharding.spec == P(ROWS, HEADS, None, None)


def test_a_decode_step_over_a_mesh():
    inputs = tuple(map(jnp.asarray, arrays(1, S, (4, 2), batch=BATCH)[:3]))
    mask = padding_and_offsets()
    run = jax.jit(lambda inputs, mask: attention(*inputs, mask=mask))
    expected = run(inputs, mask)
    with jax.set_mesh(mesh()):
        inputs, _, mask, _ = sharded(inputs, inputs[0], mask, None)
        actual = run(inputs, mask)
        weights = jax.jit(lambda inputs: attention(*inputs, return_weights=True)[1])(inputs)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert weights.sharding.spec == P(ROWS, HEADS, None, None)


def test_where_the_mesh_is_not_explicit_attention_leaves_placement_alone():
    inputs = tuple(map(jnp.asarray, arrays(T, S, (4, 2), batch=BATCH)[:3]))
    mask = padding_and_offsets()

    @jax.jit
    def run(inputs, mask):
        return attention(*inputs, mask=mask, implementation="blockwise")

    expected = run(inputs, mask)
    with jax.set_mesh(mesh(AxisType.Auto)):
        np.testing.assert_allclose(run(inputs, mask), expected, atol=1e-6)
    with jax.set_mesh(mesh()):
        # Inside a shard_map of the caller's own, an array is one device's part.
        inputs, _, mask, _ = sharded(inputs, inputs[0], mask, None)
        specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, (inputs, mask))
        inner = jax.shard_map(
            run, in_specs=specs, out_specs=P(ROWS, None, HEADS, None), check_vma=False
        )
        np.testing.assert_allclose(jax.jit(inner)(inputs, mask), expected, atol=1e-6)
