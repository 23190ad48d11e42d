"""`Request`: the arguments of an attention implementation other than the three arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jax.sharding import PartitionSpec

from jaxformer.functional.attention.distances import DistanceTerms
from jaxformer.functional.masks import Mask
from jaxformer.functional.placement import first_row
from jaxformer.functional.positions.base import Bias

AttentionBias = jax.Array | Bias


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("mask", "bias", "dropout", "distances"),
    meta_fields=("scale", "softcap"),
)
@dataclass(frozen=True)
class Request:
    """Mask, bias, dropout, distances, scale and soft-cap of one call of attention."""

    mask: Mask
    bias: AttentionBias | None
    dropout: Dropout | None
    scale: float
    softcap: float | None
    distances: DistanceTerms | None = None

    def partition_specs(self, batch_size: int, num_heads: int, batch, heads) -> Request:
        """Returns the partition specs of its arrays, from those of the batch and head axes."""

        def of(x, head_axis=None):
            entries = [None] * jnp.ndim(x)
            if entries and x.shape[0] == batch_size and head_axis != 0:
                entries[0] = batch
            if head_axis is not None and x.shape[head_axis] == num_heads:
                entries[head_axis] = heads
            return PartitionSpec(*entries)

        bias = self.bias
        if isinstance(bias, Bias):
            last = bias.heads.ndim - 1
            bias = replace(
                bias,
                heads=PartitionSpec(*[None] * last, heads),
                query_positions=jax.tree.map(of, bias.query_positions),
                key_positions=jax.tree.map(of, bias.key_positions),
            )
        elif bias is not None:
            bias = of(bias, head_axis=1)
        dropout = self.dropout
        if dropout is not None:
            dropout = replace(
                dropout, key=PartitionSpec(), rows=PartitionSpec(batch), heads=PartitionSpec(heads)
            )
        distances = self.distances
        if distances is not None:
            distances = distances.partition_specs(heads)
        mask = jax.tree.map(of, self.mask)
        return replace(self, mask=mask, bias=bias, dropout=dropout, distances=distances)


@partial(
    jax.tree_util.register_dataclass, data_fields=("key", "rows", "heads"), meta_fields=("rate",)
)
@dataclass(frozen=True)
class Dropout:
    """Dropout whose pattern is a function of the key and the global (b, n, t, s) index alone.

    So all implementations, in both passes and under any sharding, drop the same pairs.
    """

    key: jax.Array  # uint32 [2]
    rows: jax.Array  # uint32 [B], the index of each batch row
    heads: jax.Array  # uint32 [N], the index of each head
    rate: float

    @classmethod
    def create(cls, key: jax.Array, rate: float, batch_size: int, num_heads: int) -> Dropout:
        """Returns dropout at `rate` for a whole batch, with the bits of a threefry `key`."""
        bits = jax.random.key_data(key).astype(jnp.uint32)[..., :2]
        return cls(
            bits,
            first_row(batch_size) + jnp.arange(batch_size, dtype=jnp.uint32),
            jnp.arange(num_heads, dtype=jnp.uint32),
            rate,
        )

    def factors(self, query_start, query_size: int, key_start, key_size: int) -> jax.Array:
        """Returns float32 `[B, N, t, s]`: 0 with probability `rate`, else 1 / (1 - rate)."""
        row_key = _threefry(self.key[0], self.key[1], self.rows[:, None], self.heads[None, :])
        query = jnp.arange(query_size, dtype=jnp.uint32) + jnp.uint32(query_start)
        key = jnp.arange(key_size, dtype=jnp.uint32) + jnp.uint32(key_start)
        high, low = (bits[:, :, None, None] for bits in row_key)
        bits, _ = _threefry(high, low, query[None, None, :, None], key[None, None, None, :])
        threshold = jnp.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        return jnp.where(bits >= threshold, 1.0 / (1.0 - self.rate), 0.0)


def _threefry(key_high, key_low, counter_high, counter_low):
    """One threefry-2x32 block for every element of the broadcast arguments."""
    return threefry2x32_p.bind(*jnp.broadcast_arrays(key_high, key_low, counter_high, counter_low))
