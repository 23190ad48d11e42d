"""A transformer block: a tuple of sublayers joined to the residual stream."""

from collections.abc import Sequence
from functools import partial

import jax
from flax import nnx

from jaxformer.functional.dropout import dropout, split
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.context import Context
from jaxformer.nn.norm import NormLayer


class Block(nnx.Module):
    """Sublayers `(x, context, key) -> x'` in the arrangement that `config.residual` gives.

    An encoder's block is (self-attention, feed-forward); that of an encoder-decoder's decoder is
    (self-attention, cross-attention, feed-forward). Nothing else tells the families apart here.
    """

    def __init__(self, key: jax.Array, config: TransformerConfig, sublayers: Sequence[nnx.Module]):
        """Takes the sublayers and declares the norms."""
        self.sublayers = nnx.List(sublayers)
        self.residual = config.residual
        count = self.residual.num_norms(len(sublayers))
        keys = jax.random.split(key, count)
        self.norms = nnx.List([NormLayer(k, config.norm, config.model_dim) for k in keys])
        self.dropout = config.dropout

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `key` is None in evaluation."""
        keys = split(key, len(self.sublayers))
        branches = [
            partial(self._branch, sublayer, context, k)
            for sublayer, k in zip(self.sublayers, keys, strict=True)
        ]
        return self.residual(x, branches, list(self.norms))

    def _branch(self, sublayer, context, key, x):
        inner, outer = split(key, 2)
        return dropout(sublayer(x, context, inner), self.dropout, outer)
