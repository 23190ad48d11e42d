"""Dropout with an explicit key."""

import jax
import jax.numpy as jnp

from jaxformer.checks import RATE
from jaxformer.functional.assertions import assert_floating, assert_keys, static


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    r"""Zeroes each element with probability `rate` and divides the others by `1 - rate`.

    Args:
        x: Any shape.
        rate: In [0, 1).
        key: A PRNG key; None (evaluation) leaves `x` unchanged.

    Raises:
        ArgumentError: The rate is outside [0, 1), or `key` is no key.
        AssertionError: `x` holds no floating-point numbers.

    References:
        Srivastava et al., Dropout, 2014.
    """
    rate = static("rate", rate, RATE)
    assert_floating(x=x)
    if rate == 0.0 or key is None:
        return x
    assert_keys(key=key)
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))


def split(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """`count` independent keys, or as many None where there is no key (evaluation)."""
    return [None] * count if key is None else list(jax.random.split(key, count))
