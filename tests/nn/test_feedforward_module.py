"""The FeedForward module: plain and gated, with and without biases, written out in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64 import filled, projected
from tiny_models import tiny

from jaxformer.nn import Context, FeedForward

CONTEXT = Context(positions=jnp.arange(3)[None])
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


def made(**changes):
    return filled(FeedForward(jax.random.key(0), tiny(**changes)))


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_values(name, gated, bias):
    module = made(
        **{"feed_forward.activation": name, "feed_forward.gated": gated, "feed_forward.bias": bias}
    )
    shapes = {x.shape for x in jax.tree.leaves(module)}
    assert shapes == {(20, 14), (14, 20)} | ({(14,), (20,)} if bias else set())
    assert len(jax.tree.leaves(module)) == (2 + gated) * (1 + bias)
    x = np.random.default_rng(1).normal(size=(2, 3, 20)).astype(np.float32)
    wide, act = x.astype(np.float64), ACTIVATIONS[name]
    hidden = projected(module.up, wide)
    hidden = act(projected(module.gate, wide)) * hidden if gated else act(hidden)
    expected = projected(module.down, hidden)
    actual = module(jnp.asarray(x), CONTEXT, None)
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)
    # It has no dropout: the block has.
    np.testing.assert_array_equal(module(jnp.asarray(x), CONTEXT, jax.random.key(0)), actual)
