"""What a model remembers of the tokens that its decoder has read."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.functional.assertions import assert_axes, assert_integers
from jaxformer.functional.masks import Mask
from jaxformer.functional.placement import place
from jaxformer.nn import Transformer
from jaxformer.nn.cache import CacheShape, KeyValueCache, Span, picked_rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """A pytree of all that the next tokens depend on."""

    lengths: jax.Array
    """int `[B]`: how many tokens of each row have been read. Fewer than that take the last ones
    back, as many as the passes' chunk at the most: what they left is overwritten."""
    layers: list[Any]
    """What each block keeps."""
    memory_mask: Mask = Mask()
    """Which places of an encoder's output are real."""

    @classmethod
    def empty(
        cls, shape: CacheShape, layers: list[Any], memory_mask: Mask | None = None
    ) -> "Cache":
        """The cache before the first token, of what the blocks keep then."""
        lengths = jnp.zeros(shape.batch_size, jnp.int32)
        rows = None if shape.spec is None else PartitionSpec(shape.spec[0])
        return cls(place(lengths, rows), layers, Mask() if memory_mask is None else memory_mask)

    def emptied(self) -> "Cache":
        """The cache as it was before the first token."""
        return replace(self, lengths=jnp.zeros_like(self.lengths))

    def picked(self, chosen: jax.Array) -> "Cache":
        """The cache of other rows, each written about the same memory as the one it continues.

        Args:
            chosen: int `[B, n]`: of each of B groups of rows those that go on, in any order and
                number.
        """
        layers = jax.tree.map(
            lambda kept: kept.picked(chosen),
            self.layers,
            is_leaf=lambda kept: isinstance(kept, KeyValueCache),
        )
        return replace(self, lengths=picked_rows(self.lengths, chosen), layers=layers)


def extend(
    blocks: Transformer,
    embedded: jax.Array,
    cache: Cache,
    count: jax.Array | None,
    lengths: jax.Array | None,
) -> tuple[jax.Array, Cache]:
    """The hidden states `[B, T, D]` of a decoder's next tokens, and the cache after them.

    Args:
        blocks: The decoder's.
        embedded: The tokens' embeddings `[B, T, E]`.
        cache: What is kept of the tokens before.
        count: int `[B]`: how many of the T are real, the first of them; None: all.
        lengths: int `[B]`: of the rows, for positions that depend on them; None: up to these
            tokens.
    """
    sizes = assert_axes(lengths=(cache.lengths, "B"), embedded=(embedded, "B T E"))
    for name, array in (("count", count), ("lengths", lengths)):
        if array is not None:
            assert_axes(sizes, **{name: (array, "B")})
            assert_integers(**{name: array})
    if count is None:
        count = jnp.full_like(cache.lengths, embedded.shape[1])
    span = Span(cache.lengths, count)
    lengths = span.stop if lengths is None else lengths
    mask = cache.memory_mask
    hidden, layers = blocks.extend(
        embedded, cache.layers, span=span, lengths=lengths, memory_mask=mask
    )
    return hidden, replace(cache, lengths=span.stop, layers=layers)
