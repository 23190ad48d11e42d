"""Looking rows up in a table that may be sharded."""

import chex
import jax
from jax.sharding import PartitionSpec

from jaxformer.functional.linear import gathered
from jaxformer.functional.placement import spec_of


def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    r"""The rows of a table: :math:`y_{b} = W_{i_b}`.

    Args:
      table: `[V, D]`; in an explicit mesh its rows may be sharded.
      ids: int `[...]`, each in [0, V).

    Returns:
      `[..., D]` in the dtype of `table`, sharded as `ids` are.
    """
    chex.assert_rank(table, 2)
    if spec_of(table) is None:
        return table[ids]
    spec = PartitionSpec(*spec_of(ids), None)
    return gathered(table, ids).at[ids].get(out_sharding=spec)
