"""Dropout with an explicit key."""

import jax
import jax.numpy as jnp


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    r"""Zeroes each element with probability `rate` and divides the others by `1 - rate`.

    Args:
      x: any shape.
      rate: in [0, 1).
      key: a PRNG key; None (evaluation) leaves `x` unchanged.

    Raises:
      ValueError: for a rate outside [0, 1).

    References:
      Srivastava et al., Dropout, 2014.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout: rate must be in [0, 1), got {rate}")
    if rate == 0.0 or key is None:
        return x
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))


def split(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """`count` independent keys, or as many None where there is no key (evaluation)."""
    return [None] * count if key is None else list(jax.random.split(key, count))
