"""ALiBi and T5 biases: equal to the published ones, translation invariant, right gradients."""

import math
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional import alibi_bias, alibi_slopes, t5_bias, t5_bucket


def test_slopes_of_the_paper():
    np.testing.assert_array_equal(alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    np.testing.assert_array_equal(alibi_slopes(1), [2.0**-8])
    # Twelve heads: those of eight, then the odd ones of sixteen.
    expected = np.concatenate([2.0 ** -np.arange(1, 9), 2.0 ** -np.arange(0.5, 4.5)])
    np.testing.assert_allclose(alibi_slopes(12), expected, rtol=1e-7)


@pytest.mark.torch
@pytest.mark.parametrize("max_exponent", [8.0, 16.0, 2.5])
@pytest.mark.parametrize("num_heads", [1, 6, 8, 33])
def test_slopes_equal_mpt(num_heads, max_exponent):
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    published = build_mpt_alibi_tensor(num_heads, 2, max_exponent)
    slopes = alibi_slopes(num_heads, max_exponent=max_exponent)
    np.testing.assert_allclose(slopes, -published[:, 0, 0].numpy(), rtol=2e-6)


def test_alibi_bias_is_minus_slope_times_distance():
    queries, keys = jnp.array([[4, 0, 9]]), jnp.array([[0, 5], [4, 1]])
    bias = alibi_bias(jnp.array([0.5, 0.25]), queries, keys)
    chex.assert_shape(bias, (2, 2, 3, 2))
    chex.assert_type(bias, jnp.float32)
    distance = np.abs(np.asarray(queries)[:, :, None] - np.asarray(keys)[:, None, :])
    expected = -np.array([0.5, 0.25])[None, :, None, None] * distance[:, None]
    np.testing.assert_array_equal(bias, expected)


BUCKETS = [(32, 128), (32, 256), (16, 64), (8, 20), (7, 11), (4, 10), (64, 1000), (33, 500)]


@pytest.mark.torch
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), BUCKETS)
def test_buckets_equal_t5(bidirectional, num_buckets, max_distance):
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    relative = np.concatenate(
        [np.arange(-3 * max_distance, 3 * max_distance + 1), [-(10**6), 10**6]]
    )
    options = {
        "bidirectional": bidirectional,
        "num_buckets": num_buckets,
        "max_distance": max_distance,
    }
    published = T5Attention._relative_position_bucket(torch.tensor(relative), **options)
    bucket = t5_bucket(jnp.asarray(relative), **options)
    chex.assert_type(bucket, jnp.int32)
    np.testing.assert_array_equal(bucket, published.numpy())


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_follow_the_formula(bidirectional):
    """Against float64, away from the boundaries that float32 rounds."""
    relative = np.arange(-300, 301)
    bucket = t5_bucket(
        jnp.asarray(relative), bidirectional=bidirectional, num_buckets=32, max_distance=128
    )
    one_way = 16 if bidirectional else 32
    exact = one_way // 2
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    scale = (one_way - exact) / math.log(128 / exact)
    far = exact + np.log(np.maximum(distance, 1) / exact) * scale
    expected = np.where(distance < exact, distance, np.minimum(np.floor(far), one_way - 1))
    if bidirectional:
        expected = expected + one_way * (relative > 0)
    boundary = (np.abs(far - np.round(far)) < 1e-5) & (distance >= exact)
    assert boundary.sum() <= 2 * len([8, 16, 32, 64, 128, 256])
    np.testing.assert_array_equal(bucket[~boundary], expected[~boundary])


@given(
    bidirectional=st.booleans(),
    shift=st.integers(-1000, 100_000),
    seed=st.integers(0, 100),
)
def test_biases_are_translation_invariant(bidirectional, shift, seed):
    keys = jax.random.split(jax.random.key(seed), 3)
    queries = jax.random.randint(keys[0], (2, 5), 0, 300)
    keys_at = jax.random.randint(keys[1], (1, 7), 0, 300)
    table = jax.random.normal(keys[2], (32, 3))

    def biases(shift):
        options = {"bidirectional": bidirectional, "max_distance": 128}
        return (
            alibi_bias(alibi_slopes(3), queries + shift, keys_at + shift),
            t5_bias(table, queries + shift, keys_at + shift, **options),
        )

    chex.assert_shape(biases(0), (2, 3, 5, 7))
    chex.assert_trees_all_equal(biases(shift), biases(0))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_biases_and_the_gradient_of_their_table_are_those_of_one_hot_rows(bidirectional, rows):
    table = jax.random.normal(jax.random.key(0), (8, 3))
    queries = jax.random.randint(jax.random.key(1), (rows, 5), 0, 40)
    keys = jax.random.randint(jax.random.key(2), (rows, 7), 0, 40)
    weights = jax.random.normal(jax.random.key(3), (rows, 3, 5, 7))
    options = {"bidirectional": bidirectional, "max_distance": 20}

    def dense(table):
        relative = keys[:, None, :] - queries[:, :, None]
        bucket = t5_bucket(relative, num_buckets=8, **options)
        return jnp.einsum("btsc,cn->bnts", jax.nn.one_hot(bucket, 8), table)

    def loss(bias_of):
        return lambda table: jnp.sum(jnp.sin(bias_of(table)) * weights)

    bias_of = partial(t5_bias, query_positions=queries, key_positions=keys, **options)
    np.testing.assert_allclose(bias_of(table), dense(table), rtol=1e-6)
    gradient = jax.jit(jax.grad(loss(bias_of)))(table)
    np.testing.assert_allclose(gradient, jax.grad(loss(dense))(table), atol=2e-6)
