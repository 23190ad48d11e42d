"""What a block is made of."""

from typing import Any

import jax
from flax import nnx

from jaxformer.nn.cache import CacheShape
from jaxformer.nn.context import Context

Cache = Any
"""What a sublayer keeps from one pass to the next: a pytree, None where it keeps nothing."""


class Sublayer(nnx.Module):
    """A map of the residual stream, `(x, context, key) -> y`, of all tokens or of a few at a time.

    The second way, `start` and then `extend` again and again, gives what the first gives for all
    tokens together. This base class is a sublayer that looks at each token by itself.
    """

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `key` is None in evaluation."""
        raise NotImplementedError

    def start(self, shape: CacheShape, memory: jax.Array | None) -> Cache:
        """What is kept before the first token.

        Args:
            shape: How much is to be kept.
            memory: `[B, S, D]`, an encoder's output, where there is one.
        """
        del shape, memory

    def extend(self, x: jax.Array, context: Context, cache: Cache) -> tuple[jax.Array, Cache]:
        """`[B, T, D]` of the tokens of `context.span`, and what is kept after them."""
        return self(x, context, None), cache
