"""Dropout of attention: at its rate, independent from place to place, and only with a key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import arrays

from jaxformer.functional import attention


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


def test_dropout_needs_a_key_and_a_rate():
    query, key, value, _ = map(jnp.asarray, arrays(5, 5))
    expected = attention(query, key, value)
    np.testing.assert_array_equal(attention(query, key, value, dropout_rate=0.5), expected)
    unused = attention(query, key, value, dropout_rate=0.0, dropout_key=jax.random.key(0))
    np.testing.assert_array_equal(unused, expected)
