"""The token embedding, which may also serve as the output head."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.assertions import assert_axes, assert_ids
from jaxformer.functional.linear import Kernel, Transposed
from jaxformer.functional.lookup import lookup
from jaxformer.nn.parameter import Initializer, kernel_of, parameter


class Embedding(nnx.Module):
    """A table `[V, D]` that maps token ids to vectors."""

    def __init__(
        self,
        key: jax.Array,
        vocab_size: int,
        dim: int,
        initializer: Initializer,
        padding_id: int | None = None,
    ):
        """Declares the table; the row `padding_id` does not learn from being looked up."""
        self.table = parameter(key, (vocab_size, dim), ("vocab", "vocab_embed"), initializer)
        self.vocab_size, self.padding_id = vocab_size, padding_id

    def __call__(self, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Int `[B, T]` -> `[B, T, D]` in `dtype`."""
        table = self.table[...]
        assert_axes(ids=(ids, "B T"))
        assert_ids(table.shape[0], ids=ids)
        if table.dtype == dtype == jnp.bfloat16:
            # In a loop a CPU would look up in a float32 copy of the whole table, made before it.
            table, ids = jax.lax.optimization_barrier((table, ids))
        x = lookup(table.astype(dtype), ids)
        if self.padding_id is None:
            return x
        return jnp.where((ids == self.padding_id)[..., None], jax.lax.stop_gradient(x), x)

    def kernel(self) -> Kernel:
        """The table as the kernel `[D, V]` of a head that is tied to it, never a copy of it."""
        kernel = kernel_of(self.table)
        return kernel if isinstance(kernel, Transposed) else _transposed(kernel)


@jax.custom_vjp
def _transposed(table: jax.Array) -> jax.Array:
    return table.T


# Without the barrier XLA's CPU backend folds the transpose into the product that makes the
# gradient, and has no kernel for the bfloat16 x bfloat16 -> float32 product in that layout.
_transposed.defvjp(
    lambda table: (table.T, None),
    lambda _, gradient: (jax.lax.optimization_barrier(gradient).T,),
)
