"""A transformer block: a tuple of sublayers joined to the residual stream."""

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

import jax
from flax import nnx

from jaxformer.functional.assertions import assert_axes, assert_floating
from jaxformer.functional.dropout import dropout, split
from jaxformer.functional.norms import NoNorm, scaled
from jaxformer.nn.cache import CacheShape
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.context import Context
from jaxformer.nn.norm import NormLayer
from jaxformer.nn.parameter import constant, parameter
from jaxformer.nn.sublayer import Cache, Sublayer


class Block(nnx.Module):
    """Sublayers in the arrangement that `config.residual` gives.

    An encoder's block is (self-attention, feed-forward); that of an encoder-decoder's decoder is
    (self-attention, cross-attention, feed-forward). Nothing else tells the families apart here.
    """

    def __init__(self, key: jax.Array, config: TransformerConfig, sublayers: Sequence[Sublayer]):
        """Takes the sublayers and declares the norms and the scales of their outputs."""
        self.sublayers = nnx.List(sublayers)
        self.residual = config.residual
        count = self.residual.num_norms(len(sublayers))
        keys = jax.random.split(key, count)
        norms = [config.norm if config.first_norm or i else NoNorm() for i in range(count)]
        self.norms = nnx.List(
            [NormLayer(k, norm, config.model_dim) for k, norm in zip(keys, norms, strict=True)]
        )
        initial, shape = config.layer_scale, (config.model_dim,)
        self.scales = nnx.List(
            []
            if initial is None
            else [parameter(key, shape, ("norm",), constant(initial)) for _ in sublayers]
        )
        self.dropout = config.dropout

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `key` is None in evaluation."""
        assert_axes(x=(x, "B T D"))
        assert_floating(x=x)
        keys = split(key, len(self.sublayers))
        branches = [
            partial(self._branch, sublayer, context, k, scale)
            for sublayer, k, scale in zip_longest(self.sublayers, keys, self.scales)
        ]
        return self.residual(x, branches, list(self.norms))

    def start(self, shape: CacheShape, memory: jax.Array | None) -> list[Cache]:
        """What each sublayer keeps before the first token, see `Sublayer.start`."""
        return [sublayer.start(shape, memory) for sublayer in self.sublayers]

    def extend(
        self, x: jax.Array, context: Context, caches: list[Cache]
    ) -> tuple[jax.Array, list[Cache]]:
        """`[B, T, D]` of the tokens of `context.span`, and what is kept after them."""
        caches = list(caches)

        def branch(x, place, sublayer, scale):
            # The arrangement calls each branch once and knows of the stream alone.
            y, caches[place] = sublayer.extend(x, context, caches[place])
            return y if scale is None else scaled(y, scale[...])

        branches = [
            partial(branch, place=place, sublayer=sublayer, scale=scale)
            for place, (sublayer, scale) in enumerate(zip_longest(self.sublayers, self.scales))
        ]
        return self.residual(x, branches, list(self.norms)), caches

    def _branch(self, sublayer, context, key, scale, x):
        inner, outer = split(key, 2)
        y = sublayer(x, context, inner)
        return dropout(y if scale is None else scaled(y, scale[...]), self.dropout, outer)
