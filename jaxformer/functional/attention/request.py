"""`Request`: the arguments of an attention implementation other than the three arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.functional.attention.distances import DistanceTerms
from jaxformer.functional.dropout import Dropout
from jaxformer.functional.masks import Mask
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
        """Returns the partition specs of its arrays, given those of the batch and head axes."""

        def of(x, head_axis=None):
            entries = [None] * jnp.ndim(x)
            if entries and x.shape[0] == batch_size and head_axis != 0:
                entries[0] = batch
            if head_axis is not None and x.shape[head_axis] == num_heads:
                entries[head_axis] = heads
            return PartitionSpec(*entries)

        bias, dropout, distances = self.bias, self.dropout, self.distances
        if isinstance(bias, Bias):
            rows = jax.tree.map(of, replace(bias, heads=()))
            bias = replace(rows, heads=PartitionSpec(*[None] * (bias.heads.ndim - 1), heads))
        elif bias is not None:
            bias = of(bias, head_axis=1)
        if dropout is not None:
            rows, own = PartitionSpec(batch), PartitionSpec(heads)
            dropout = replace(dropout, key=PartitionSpec(), rows=rows, heads=own)
        if distances is not None:
            distances = distances.partition_specs(heads)
        mask = jax.tree.map(of, self.mask)
        return replace(self, mask=mask, bias=bias, dropout=dropout, distances=distances)
