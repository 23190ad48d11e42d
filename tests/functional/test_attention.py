"""Attention: values and gradients equal to the definition in float64."""

import itertools
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    BATCH,
    BOTH,
    KINDS,
    arrays,
    assert_trees_close,
    exact,
    make_bias,
    random_mask,
    value_and_gradients,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.functional import Mask, attention, causal
from jaxformer.functional.attention import blockwise as attention_blockwise


def assert_exact(
    implementation, kind, lengths, heads=(4, 2), widths=(4, 4), sinks=None, bias=None, **options
):
    """Values and gradients are those of the definition; `bias` has the shape before the pairs."""
    with jax.enable_x64(True):
        *inputs, cotangent = arrays(*lengths, heads, widths, dtype=np.float64)
        inputs += [] if sinks is None else [np.array(sinks)]
        options |= {"mask": random_mask(kind, *lengths), "dropout_key": jax.random.key(7)}
        options["bias"] = bias and make_bias("array", *lengths, heads[0], bias)
        actual = value_and_gradients(implementation, inputs, cotangent, **options)
        assert_trees_close(actual, exact(inputs, cotangent, **options), 1e-12)


@pytest.mark.parametrize(
    ("kind", "lengths", "heads", "options"),
    [
        ("none", (5, 9), (2, 2), {}),
        ("causal", (9, 9), (6, 2), {"scale": 0.3}),
        ("rows", (5, 9), (4, 1), {"softcap": 1.5}),
        ("window", (9, 5), (2, 2), {"bias": (BATCH, 2)}),
        ("segments", (9, 9), (4, 2), {"bias": (1, 4), "softcap": 2.0}),
        ("left padding", (9, 5), (4, 2), {"dropout_rate": 0.4}),
        ("dense one", (7, 8), (4, 2), {"bias": (1, 1), "dropout_rate": 0.2}),
    ],
)
def test_reference(kind, lengths, heads, options):
    assert_exact("reference", kind, lengths, heads, (4, 6), **options)


LENGTHS = [(130, 257), (257, 130), (37, 37)]


def small_blocks(query_length, key_length, grain):
    """Several blocks of both, of other sizes, the last ones padded."""
    del grain
    return attention_blockwise.Blocks(min(64, query_length), min(96, key_length))


SMALL_BLOCKS = mock.patch.object(attention_blockwise, "_block_sizes", small_blocks)


@SMALL_BLOCKS
@pytest.mark.parametrize(
    ("kind", "lengths"), list(zip(KINDS, itertools.cycle(LENGTHS), strict=False))
)
def test_blockwise_with_every_mask(kind, lengths):
    assert_exact("blockwise", kind, lengths)


@SMALL_BLOCKS
@settings(max_examples=8)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True),
    lengths=st.sampled_from([(130, 257), (37, 37), (1, 130)]),
    heads=st.sampled_from([(2, 2), (6, 2), (8, 1)]),
    scale=st.sampled_from([None, 0.1, 3.0, -0.5, 0.0]),
    softcap=st.sampled_from([None, 2.0]),
    bias=st.sampled_from([None, "array", "alibi", "t5"]),
    dropout_rate=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 9),
)
@pytest.mark.slow
def test_blockwise_with_everything(kinds, lengths, heads, scale, softcap, bias, dropout_rate, seed):
    with jax.enable_x64(True):
        *inputs, cotangent = arrays(*lengths, heads, (3, 5), seed, np.float64)
        mask = Mask()
        for kind in kinds:
            mask &= random_mask(kind, *lengths, seed)
        options = {
            "mask": mask,
            "scale": scale,
            "softcap": softcap,
            "bias": make_bias(bias, *lengths, heads[0]),
            "dropout_rate": dropout_rate,
            "dropout_key": jax.random.key(seed),
        }
        output, (gradients, of_bias) = value_and_gradients(
            "blockwise", inputs, cotangent, **options
        )
        expected, (expected_gradients, expected_of_bias) = exact(inputs, cotangent, **options)
        assert_trees_close((output, gradients), (expected, expected_gradients), 1e-12)
        # The gradient of a scheme passes through its float32 arithmetic.
        assert_trees_close(of_bias, expected_of_bias, 1e-12 if bias == "array" else 1e-5)


@SMALL_BLOCKS
@BOTH
@pytest.mark.parametrize(
    ("kind", "lengths", "options"),
    [
        ("window", (130, 257), {"bias": (BATCH, 6), "softcap": 2.0}),
        ("causal", (37, 37), {"dropout_rate": 0.3}),
        ("dense one", (257, 130), {"scale": 0.3}),  # many queries have no keys
        ("none", (1, 130), {}),
    ],
)
def test_sinks(kind, lengths, options, implementation):
    sinks = [-50.0, -1.0, 0.0, 0.5, 3.0, 50.0]
    assert_exact(implementation, kind, lengths, (6, 2), (3, 5), sinks, **options)


def test_weights_leave_a_share_to_the_sinks():
    query, key, value, _ = arrays(5, 9, (6, 2))
    mask = random_mask("dense one", 5, 9)
    sinks = jnp.linspace(-2.0, 2.0, 6)
    output, weights = attention(query, key, value, mask=mask, sinks=sinks, return_weights=True)
    plain = attention(query, key, value, mask=mask, sinks=sinks)
    np.testing.assert_allclose(output, plain, atol=1e-6)
    logits = np.einsum("btnh,bsnh->bnts", query, np.repeat(key, 3, axis=2)) / 2.0
    total = np.sum(np.where(mask.values(5, 9)[:, None], np.exp(logits), 0.0), axis=-1)
    np.testing.assert_allclose(weights.sum(-1), total / (total + np.exp(sinks)[:, None]), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (BATCH, 1), (BATCH, 4)])
@pytest.mark.quick("shape1", "shape3")
def test_bias_arrays_of_every_broadcast_shape(shape):
    assert_exact("blockwise", "shifted", (37, 130), bias=shape)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@BOTH
def test_lower_precision_stays_near_float64(implementation, dtype):
    *inputs, cotangent = (
        jnp.asarray(x, dtype) for x in arrays(130, 257, heads=(4, 2), widths=(16, 16))
    )
    options = {"mask": causal(100), "softcap": 5.0, "bias": make_bias("t5", 130, 257, 4)}
    output, (gradients, of_bias) = value_and_gradients(implementation, inputs, cotangent, **options)
    assert [x.dtype for x in (output, *gradients)] == [dtype] * 4
    assert of_bias.dtype == jnp.float32
    *inputs, cotangent = (np.asarray(x, np.float64) for x in (*inputs, cotangent))
    expected = exact(inputs, cotangent, **options)
    # float32 rounds to 2^-24 and bfloat16 to 2^-9; a few of these add up.
    tolerance = 5e-6 if dtype == jnp.float32 else 1e-2
    assert_trees_close((output, (gradients, of_bias)), expected, tolerance)


@pytest.mark.parametrize("kind", ["none", "causal", "left padding"])
@pytest.mark.quick("causal")
def test_lengths_that_its_own_blocks_do_not_divide(kind):
    assert_exact("blockwise", kind, (600, 600), heads=(2, 1))


@BOTH
def test_the_same_bits_every_time(implementation):
    *inputs, cotangent = arrays(130, 130, heads=(4, 2))
    options = {"mask": causal(), "dropout_rate": 0.1, "dropout_key": jax.random.key(1)}
    one, two = (value_and_gradients(implementation, inputs, cotangent, **options) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.more
@pytest.mark.parametrize("length", [1, 5, 130])
@pytest.mark.quick("5", "130")
def test_bfloat16_gradients_of_few_and_of_many_blocks(length):
    # XLA's CPU backend has no kernel for some layouts of a bfloat16 product.
    *inputs, cotangent = arrays(length, length, heads=(6, 2), widths=(8, 8), dtype=jnp.bfloat16)

    @jax.jit
    def gradients(*inputs):
        run = partial(attention, mask=causal(), implementation="blockwise")
        return jax.vjp(run, *inputs)[1](cotangent)

    wide = [np.asarray(x, np.float32) for x in inputs]
    run = partial(attention, mask=causal(), implementation="reference")
    expected = jax.vjp(run, *wide)[1](jnp.asarray(cotangent, jnp.float32))
    for actual, reference in zip(gradients(*inputs), expected, strict=True):
        scale = np.abs(reference).max()
        np.testing.assert_allclose(np.asarray(actual, np.float32), reference, atol=0.03 * scale)
