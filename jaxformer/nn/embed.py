"""The token embedding, which may also serve as the output head."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.lookup import lookup
from jaxformer.nn.parameter import Initializer, parameter


class Embedding(nnx.Module):
    """A table `[V, D]` that maps token ids to vectors."""

    def __init__(self, key: jax.Array, vocab_size: int, dim: int, initializer: Initializer):
        """Declares the table."""
        self.table = parameter(key, (vocab_size, dim), ("vocab", "vocab_embed"), initializer)

    def __call__(self, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Int `[B, T]` -> `[B, T, D]` in `dtype`."""
        return lookup(self.table[...].astype(dtype), ids)
