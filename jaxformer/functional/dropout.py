"""Dropout with an explicit key, for array elements and for attention pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from jaxformer.checks import RATE
from jaxformer.functional.arrays import (
    assert_floating,
    assert_keys,
    first_row,
    is_manually_sharded,
    spec_of,
    static,
)


def as_key(key: jax.Array) -> jax.Array:
    """Returns a PRNG key of `jax.random.key`, from one of `jax.random.PRNGKey` too."""
    key = jnp.asarray(key)
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


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
    kept = _keep_mask(key, 1.0 - rate, x)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))


def _keep_mask(key: jax.Array, share: float, x: jax.Array) -> jax.Array:
    """Returns `jax.random.bernoulli(key, share)` for these rows among those of all replicas."""
    shape = x.shape
    if not is_manually_sharded():
        # Without a sharding every device would draw the random numbers of all devices.
        return jax.random.bernoulli(key, share, shape, out_sharding=spec_of(x))
    size = math.prod(shape[1:])
    rows = first_row(shape[0]) + jnp.arange(shape[0], dtype=jnp.uint32)
    high, low = (x[:, None] for x in _product(rows, size))
    place = low + jnp.arange(size, dtype=jnp.uint32)[None, :]
    seed = jax.random.key_data(key).astype(jnp.uint32)
    counters = (high + (place < low).astype(jnp.uint32), place)
    bits = _threefry(seed[0], seed[1], *counters)
    # The first 23 bits are a number in [0, 1), as in `jax.random.uniform`.
    drawn = ((bits[0] ^ bits[1]) >> 9).astype(jnp.float32) * 2.0**-23
    return (drawn < jnp.float32(share)).reshape(shape)


def _product(x: jax.Array, factor: int) -> tuple[jax.Array, jax.Array]:
    """Returns the high and low 32 bits of uint32 `x` times a factor below 2^32."""
    half, mask = 16, jnp.uint32(2**16 - 1)
    high, low = x >> half, x & mask
    factor_high = jnp.uint32(factor >> half)
    factor_low = jnp.uint32(factor & (2**16 - 1))
    middle = high * factor_low + ((low * factor_low) >> half)
    carried = (middle & mask) + low * factor_high
    return high * factor_high + (middle >> half) + (carried >> half), x * jnp.uint32(factor)


def split(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """Returns `count` independent keys, or a list of None without a key (evaluation)."""
    return [None] * count if key is None else list(jax.random.split(key, count))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("key", "rows", "heads", "first_query", "first_key"),
    meta_fields=("rate",),
)
@dataclass(frozen=True)
class Dropout:
    """The dropout of pairs: a function only of the key and the global (b, n, t, s) index.

    All implementations therefore drop the same pairs, in both passes and under any sharding.
    """

    key: jax.Array  # uint32 [2]
    rows: jax.Array  # uint32 [B], the index of each batch row
    heads: jax.Array  # uint32 [N], the index of each head
    first_query: jax.Array  # uint32, the index of the first query
    first_key: jax.Array  # uint32, the index of the first key
    rate: float

    @classmethod
    def create(cls, key: jax.Array, rate: float, batch_size: int, num_heads: int) -> Dropout:
        """Returns dropout at `rate` for a whole batch, with the bits of a threefry `key`."""
        bits = jax.random.key_data(key).astype(jnp.uint32)[..., :2]
        return cls(
            bits,
            first_row(batch_size) + jnp.arange(batch_size, dtype=jnp.uint32),
            jnp.arange(num_heads, dtype=jnp.uint32),
            jnp.uint32(0),
            jnp.uint32(0),
            rate,
        )

    def from_pair(self, query: jax.Array | int, key: jax.Array | int) -> Dropout:
        """Returns the dropout of the queries and the keys from these indices on."""
        first_query, first_key = (jnp.asarray(x).astype(jnp.uint32) for x in (query, key))
        first_query, first_key = self.first_query + first_query, self.first_key + first_key
        return replace(self, first_query=first_query, first_key=first_key)

    def factors(self, query_start, query_size: int, key_start, key_size: int) -> jax.Array:
        """Returns float32 `[B, N, t, s]`: 0 with probability `rate`, else 1 / (1 - rate)."""
        row_key = _threefry(self.key[0], self.key[1], self.rows[:, None], self.heads[None, :])
        query = jnp.arange(query_size, dtype=jnp.uint32) + jnp.uint32(query_start)
        query += self.first_query
        key = jnp.arange(key_size, dtype=jnp.uint32) + jnp.uint32(key_start)
        key += self.first_key
        high, low = (bits[:, :, None, None] for bits in row_key)
        bits, _ = _threefry(high, low, query[None, None, :, None], key[None, None, None, :])
        threshold = jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        return jnp.where(bits >= threshold, 1.0 / (1.0 - self.rate), 0.0)


def _threefry(key_high, key_low, counter_high, counter_low):
    """Computes a threefry-2x32 block for every element of the broadcast arguments."""
    return threefry2x32_p.bind(*jnp.broadcast_arrays(key_high, key_low, counter_high, counter_low))
