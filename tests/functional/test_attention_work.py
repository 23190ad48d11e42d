"""Blockwise attention: no array of all pairs, no block that a mask excludes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BATCH, arrays, make_bias, value_and_gradients
from jaxprs import equations

from jaxformer.functional import (
    BlockBand,
    DenseMask,
    KeyPadding,
    KeyRange,
    Prefix,
    Segments,
    attention,
    causal,
    sliding_window,
)

pytestmark = pytest.mark.more


def sizes(jaxpr):
    """The number of elements of every array that a program makes."""
    return [np.prod(v.aval.shape) for equation in equations(jaxpr) for v in equation.outvars]


@pytest.mark.parametrize("bias", [None, "alibi", "t5"])
def test_blockwise_makes_no_array_of_all_pairs(bias):
    length = 2048
    *inputs, cotangent = arrays(length, length, heads=(1, 1))
    documents = jnp.asarray(np.arange(length)[None] // 700 + 1)
    mask = causal() & Segments(documents, documents) & KeyPadding(documents > 1)
    bias = make_bias(bias, length, length, 1)

    def size(implementation):
        def run(*inputs):
            output, pull = jax.vjp(
                lambda *x: attention(*x, mask=mask, bias=bias, implementation=implementation),
                *inputs,
            )
            return output, pull(jnp.asarray(cotangent))

        return max(sizes(jax.make_jaxpr(run)(*inputs).jaxpr))

    assert size("reference") >= length**2
    assert size("blockwise") < BATCH * length**2 / 4


def test_a_bias_that_nobody_differentiates_has_no_gradient_in_memory():
    length = 1024
    *inputs, _ = arrays(length, length, heads=(1, 1))
    bias = jnp.ones((1, 1, length, length))

    def loss(query, key, value, bias):
        return jnp.sum(attention(query, key, value, bias=bias, implementation="blockwise"))

    def as_large_as_the_bias(function):
        made = sizes(jax.make_jaxpr(function)(*inputs, bias).jaxpr)
        return sum(size >= bias.size for size in made)

    forward = as_large_as_the_bias(loss)
    assert as_large_as_the_bias(jax.grad(loss, (0, 1, 2))) == forward
    assert as_large_as_the_bias(jax.grad(loss, (0, 1, 2, 3))) > forward


@pytest.mark.parametrize(
    ("mask", "poison"),
    [
        (causal(), slice(1040, None)),
        (sliding_window(30, 560), slice(60)),
        (Prefix(jnp.full(BATCH, 500)), slice(1040, None)),
        (KeyPadding(jnp.arange(1100)[None] < 500), slice(1040, None)),
        (DenseMask(jnp.ones((1, 500, 1100), bool).at[:, :, 500:].set(False)), slice(1040, None)),
        (
            Segments(jnp.full((BATCH, 500), 2), jnp.where(jnp.arange(1100) < 500, 2, 3)[None]),
            slice(1040, None),
        ),
        # The 500 queries are from 600 on, and the last block of keys begins at 1088.
        (
            BlockBand(64, query_offset=600) | KeyRange(0, 64) | KeyRange(1088, 1100),
            slice(128, 384),
        ),
    ],
    ids=["causal", "window", "prefix", "padding", "dense", "segments", "blocks"],
)
@pytest.mark.quick("causal", "segments", "prefix", "padding")
def test_blockwise_never_reads_the_blocks_that_a_mask_excludes(mask, poison):
    *inputs, cotangent = arrays(500, 1100)
    for x in inputs[1:]:
        x[:, poison] = np.nan
    results = value_and_gradients("blockwise", inputs, cotangent, mask=mask)
    assert all(jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(results))
