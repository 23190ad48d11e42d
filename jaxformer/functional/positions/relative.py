"""Biases on the attention scores that depend on the distance: ALiBi and T5 buckets."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.checks import POSITIVE, SWITCH, at_least
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    spec_of,
    static,
)


def alibi_slopes(num_heads: int, *, max_exponent: float = 8.0) -> jax.Array:
    r"""Returns the slope of every head: `2^(-m (n + 1) / N)` for n = 0 .. N - 1 if N is a power of
    two.

    Otherwise the slopes of the power of two below N, then every other slope of the one above.

    Args:
        num_heads: N, at least 1.
        max_exponent: m, 8 in the paper: the last slope is `2^-m`.

    Returns:
        [N] float32.

    Raises:
        ArgumentError: An argument is invalid.

    References:
        Press et al., 2022 (section 3 and its code), https://arxiv.org/abs/2108.12409
    """
    num_heads = static("num_heads", num_heads, at_least(1))
    max_exponent = static("max_exponent", max_exponent, POSITIVE)

    def geometric(count: int) -> np.ndarray:
        return 2.0 ** (-max_exponent * np.arange(1, count + 1) / count)

    power = 2 ** (num_heads.bit_length() - 1)
    slopes = np.concatenate([geometric(power), geometric(2 * power)[0::2]])
    return jnp.asarray(slopes[:num_heads], jnp.float32)


def alibi_bias(
    slopes: jax.Array, query_positions: jax.Array, key_positions: jax.Array
) -> jax.Array:
    r"""Returns a penalty that grows linearly with the distance, `-slope_n |q - k|`.

    Under a causal mask k <= q, so this equals the paper's `-slope_n (q - k)`. Without one it is
    symmetric: keys ahead are penalized like keys behind.

    Args:
        slopes: [N].
        query_positions: [B or 1, T] integer positions.
        key_positions: [B or 1, S] integer positions.

    Returns:
        [B or 1, N, T, S] float32.

    References:
        Press et al., 2022, https://arxiv.org/abs/2108.12409
    """
    assert_axes(slopes=(slopes, "N"))
    assert_floating(slopes=slopes)
    _assert_positions(query_positions, key_positions)
    distance_BTS = jnp.abs(query_positions[:, :, None] - key_positions[:, None, :])
    slopes = slopes.astype(jnp.float32)[None, :, None, None]
    return -slopes * distance_BTS[:, None].astype(jnp.float32)


def rounded_alibi_bias(
    slopes: jax.Array, query_positions: jax.Array, key_positions: jax.Array
) -> jax.Array:
    r"""Returns ALiBi as trained in bfloat16, `round(round(slope_n) round(k))`.

    A constant added for all keys does not change the softmax, so this equals `-slope_n (q - k)` for
    k <= q, except for the rounding, which depends on the key's position instead of the distance.
    The arguments and the result are those of `alibi_bias`.

    References: Almazrouei et al., 2023, https://arxiv.org/abs/2311.16867, whose smaller models use
        it.
    """
    assert_axes(slopes=(slopes, "N"))
    assert_floating(slopes=slopes)
    _assert_positions(query_positions, key_positions)

    def rounded(x: jax.Array) -> jax.Array:
        # XLA may remove a cast to bfloat16 and back, but not this.
        return jax.lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)

    products_BNS = rounded(rounded(slopes)[None, :, None] * rounded(key_positions)[:, None, :])
    shape = (*products_BNS.shape[:2], query_positions.shape[1], products_BNS.shape[2])
    return jnp.broadcast_to(products_BNS[:, :, None], shape)


def _assert_positions(query_positions, key_positions):
    assert_axes(query_positions=(query_positions, "_ T"), key_positions=(key_positions, "_ S"))
    assert_integers(query_positions=query_positions, key_positions=key_positions)
    if 1 not in (rows := (query_positions.shape[0], key_positions.shape[0])) and rows[0] != rows[1]:
        raise AssertionError(f"query_positions has {rows[0]} rows, key_positions {rows[1]}")


def _bucket_starts(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the smallest distance in each bucket 1 .. num_buckets - 1 of one direction."""
    exact = num_buckets // 2
    distances = np.arange(max_distance + 1)
    # float32 and this order of operations decide which side of a boundary a distance falls on.
    ratio = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    ratio = ratio / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)
    far = np.minimum(exact + ratio.astype(np.int64), num_buckets - 1)
    buckets = np.where(distances < exact, distances, far)
    return np.searchsorted(buckets, np.arange(1, num_buckets)).astype(np.int32)


def t5_bucket(
    relative_position: jax.Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
    r"""Returns the bucket of a distance: exact for near distances, logarithmically wider beyond.

    With n buckets in a direction and d the distance, the bucket is d for `d < n / 2`, else
    `n/2 + floor(ln(2 d / n) / ln(2 max_distance / n) n / 2)`, at most n - 1.

    Args:
        relative_position: [...] integers, key position minus query position.
        bidirectional: Whether to use half of the buckets for keys ahead of the query; otherwise
            those keys share bucket 0 with the query's position.
        num_buckets: Total number of buckets.
        max_distance: Distance beyond which all keys share the last bucket.

    Returns:
        [...] int32 in [0, num_buckets).

    Raises:
        AssertionError: `relative_position` is not an array of integers.
        ArgumentError: There are too few buckets, or more exact ones than `max_distance`.

    References:
        Raffel et al., 2020 (section 2.1), https://arxiv.org/abs/1910.10683
    """
    assert_integers(relative_position=relative_position)
    bidirectional = static("bidirectional", bidirectional, SWITCH)
    num_buckets = static("num_buckets", num_buckets, at_least(2))
    max_distance = static("max_distance", max_distance, at_least(2))
    one_way = num_buckets // 2 if bidirectional else num_buckets
    if one_way < 2 or max_distance <= one_way // 2:
        raise ArgumentError(
            f"num_buckets = {num_buckets}, max_distance = {max_distance}: needs at least two "
            "buckets per direction, and max_distance above the number of exact buckets, which is "
            "half of them"
        )
    ahead = relative_position > 0
    distance = jnp.abs(relative_position) if bidirectional else jnp.maximum(-relative_position, 0)
    # Comparisons are exact on every backend, unlike logarithms at a boundary.
    starts = _bucket_starts(one_way, max_distance).reshape((1,) * distance.ndim + (-1,))
    bucket = jnp.sum(distance[..., None] >= starts, axis=-1, dtype=jnp.int32)
    return bucket + one_way * ahead.astype(jnp.int32) if bidirectional else bucket


def t5_bias(
    table: jax.Array,
    query_positions: jax.Array,
    key_positions: jax.Array,
    *,
    bidirectional: bool,
    max_distance: int,
) -> jax.Array:
    """Returns a learned scalar per head and bucket of the distance, `table[bucket(k - q), n]`.

    In explicit sharding mode the batch follows the positions and the heads follow the table.

    Args:
        table: [num_buckets, N].
        query_positions: [B or 1, T] integer positions.
        key_positions: [B or 1, S] integer positions.
        bidirectional: See `t5_bucket`.
        max_distance: See `t5_bucket`.

    Returns:
        [B or 1, N, T, S] float32.

    References:
        Raffel et al., 2020 (section 2.1), https://arxiv.org/abs/1910.10683
    """
    assert_axes(table=(table, "num_buckets N"))
    assert_floating(table=table)
    _assert_positions(query_positions, key_positions)
    max_distance = static("max_distance", max_distance, at_least(2))
    # Beyond max_distance all distances share a bucket, so smaller distances cover all buckets.
    bucket_of_distance = t5_bucket(
        jnp.arange(-max_distance, max_distance + 1),
        bidirectional=bidirectional,
        num_buckets=table.shape[0],
        max_distance=max_distance,
    )
    distance_BTS = key_positions[:, None, :] - query_positions[:, :, None]
    index_BTS = jnp.clip(distance_BTS, -max_distance, max_distance) + max_distance
    pairs = spec_of(index_BTS)
    heads = jax.typeof(table).sharding.spec[1]
    bucket_BTS = bucket_of_distance.at[index_BTS].get(out_sharding=pairs)
    table = jnp.asarray(table, jnp.float32)
    if bucket_BTS.shape[0] != 1:  # a symbol of jax.export is not 1 either
        out = None if pairs is None else PartitionSpec(*pairs, heads)
        return table.at[bucket_BTS].get(out_sharding=out).transpose(0, 3, 1, 2)
    # One bias for all rows: XLA computes a product once but repeats a gather for each row.
    chosen_BTSC = jax.nn.one_hot(bucket_BTS, table.shape[0], dtype=table.dtype)
    bias_NBTS = jax.lax.dot_general(
        table,
        chosen_BTSC,
        (((0,), (3,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        out_sharding=None if pairs is None else PartitionSpec(heads, *pairs),
    )
    return bias_NBTS.transpose(1, 0, 2, 3)
