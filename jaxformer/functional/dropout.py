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

    Returns:
        The shape and dtype of `x`.

    Raises:
        ArgumentError: The rate is outside [0, 1), or `key` is not a PRNG key.
        AssertionError: `x` does not hold floating-point numbers.

    References:
        Srivastava et al., Dropout, 2014 (https://jmlr.org/papers/v15/srivastava14a.html).
    """
    rate = static("rate", rate, RATE)
    assert_floating(x=x)
    if rate == 0.0 or key is None:
        return x
    assert_keys(key=key)
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))


def split(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """Returns `count` independent keys, or as many None without a key (evaluation)."""
    return [None] * count if key is None else list(jax.random.split(key, count))
