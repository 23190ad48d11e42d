"""What attention is, whatever computes it: who has influence on whom, and who has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    BATCH,
    BOTH,
    arrays,
    assert_trees_close,
    make_bias,
    value_and_gradients,
)

from jaxformer.functional import DenseMask, attention, causal, sliding_window


@BOTH
def test_a_query_that_may_attend_to_nothing_gives_zeros_and_no_gradient(implementation):
    *inputs, cotangent = arrays(37, 130, heads=(4, 2))
    allowed = np.ones((BATCH, 37, 130), bool)
    allowed[0] = False
    allowed[1, 5] = False
    bias = make_bias("array", 37, 130, 4).astype(jnp.float32)
    options = {"mask": DenseMask(jnp.asarray(allowed)), "bias": bias, "dropout_rate": 0.5}
    output, (gradients, of_bias) = value_and_gradients(
        implementation, inputs, cotangent, dropout_key=jax.random.key(0), **options
    )
    of_query, of_key, of_value = gradients
    assert all(jnp.all(jnp.isfinite(x)) for x in (*gradients, of_bias))
    for x in (output[0], output[1, 5], of_query[0], of_query[1, 5], of_key[0], of_value[0]):
        assert jnp.all(x == 0)
    assert jnp.all(of_bias[0] == 0)
    assert jnp.all(of_bias[1, :, 5] == 0)
    assert jnp.any(of_key[1] != 0)


@BOTH
def test_a_bias_of_minus_infinity_excludes_a_key(implementation):
    *inputs, cotangent = arrays(5, 130)
    allowed = np.random.default_rng(2).random((1, 5, 130)) < 0.5
    allowed[0, 3] = False
    bias = jnp.where(allowed[:, None], 0.0, -jnp.inf)
    by_mask = value_and_gradients(
        implementation, inputs, cotangent, mask=DenseMask(jnp.asarray(allowed))
    )
    by_bias = value_and_gradients(implementation, inputs, cotangent, bias=bias)
    assert jnp.all(jnp.isfinite(by_bias[1][1]))
    assert_trees_close((by_bias[0], by_bias[1][0]), (by_mask[0], by_mask[1][0]), 1e-6)


@BOTH
def test_the_future_has_no_influence_at_all(implementation):
    mask = sliding_window(5)
    query, key, value, _ = map(jnp.asarray, arrays(9, 9, heads=(2, 1)))

    def output(key, value):
        return attention(query, key, value, mask=mask, implementation=implementation)[0].sum((1, 2))

    jacobians = jax.jit(jax.jacrev(output, argnums=(0, 1)))(key, value)
    allowed = np.asarray(mask.values(9, 9)[0])
    for jacobian_TBSKH in jacobians:
        influence = np.abs(jacobian_TBSKH).sum((1, 3, 4))
        assert np.all(influence[~allowed] == 0)
    assert np.all(influence[allowed] > 0)


@BOTH
def test_grouped_heads_are_repeated_heads(implementation):
    query, key, value, cotangent = arrays(37, 37, heads=(6, 2))
    repeated = [np.repeat(x, 3, axis=2) for x in (key, value)]
    output, (gradients, _) = value_and_gradients(
        implementation, (query, key, value), cotangent, mask=causal()
    )
    expected, (whole, _) = value_and_gradients(
        implementation, (query, *repeated), cotangent, mask=causal()
    )
    summed = [x.reshape(BATCH, 37, 2, 3, -1).sum(3) for x in whole[1:]]
    assert_trees_close((output, gradients), (expected, [whole[0], *summed]), 1e-6)


def test_returned_weights_are_the_probabilities():
    query, key, value, _ = map(jnp.asarray, arrays(7, 9, heads=(4, 2), dtype=np.float32))
    mask = DenseMask(jnp.ones((1, 7, 9), bool).at[:, 4].set(False)) & causal(1)
    output, weights = attention(query, key, value, mask=mask, return_weights=True)
    assert weights.shape == (BATCH, 4, 7, 9)
    assert weights.dtype == jnp.float32
    sums = weights.sum(-1)
    np.testing.assert_allclose(sums, jnp.ones_like(sums).at[:, :, 4].set(0.0), atol=1e-6)
    assert jnp.all(jnp.where(mask.values(7, 9)[:, None], 0.0, weights) == 0)
    repeated = jnp.repeat(value, 2, axis=2)
    np.testing.assert_allclose(output, jnp.einsum("bnts,bsnh->btnh", weights, repeated), atol=1e-6)


@pytest.mark.more
def test_dropout_drops_at_its_rate_and_keeps_the_mean():
    query, key, value, _ = map(jnp.asarray, arrays(200, 300, heads=(4, 2)))
    plain = attention(query, key, value, return_weights=True)[1]

    def gone(seed):
        options = {"dropout_rate": 0.25, "dropout_key": jax.random.key(seed)}
        weights = attention(query, key, value, return_weights=True, **options)[1]
        gone = np.asarray(weights == 0)
        np.testing.assert_allclose(weights[~gone], plain[~gone] / 0.75, rtol=1e-5)
        return gone

    one, two = gone(1), gone(2)
    assert abs(one.mean() - 0.25) < 5 * (0.25 * 0.75 / one.size) ** 0.5
    # Independent between calls, rows, heads, queries and keys: agreement is left to chance.
    chance = 0.25**2 + 0.75**2
    for other in (two, *(np.roll(one, 1, axis) for axis in range(4))):
        difference = (one == other).mean() - chance
        assert abs(difference) < 5 * (2 * chance * (1 - chance) / one.size) ** 0.5
