"""Looking rows up in a table that may be sharded."""

import jax
from jax.sharding import PartitionSpec

from jaxformer.functional.assertions import assert_axes, assert_ids
from jaxformer.functional.linear import gathered
from jaxformer.functional.placement import place, spec_of


def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    r"""The rows of a table: :math:`y_{b} = W_{i_b}`.

    Args:
        table: `[V, D]`; in an explicit mesh its rows stay sharded over the mesh axes that do not
            shard `ids`. Its columns are gathered: from a table cut along D the partitioner would
            make a replicated result.
        ids: int `[...]`, each in [0, V); one of a `jax.Array` that is not reads another row.

    Returns:
        `[..., D]` in the dtype of `table`, sharded as `ids` are.
    """
    sizes = assert_axes(table=(table, "V D"), ids=(ids, "..."))
    assert_ids(sizes["V"], ids=ids)
    if spec_of(table) is None:
        return table[ids]
    table = gathered(table, ids)
    table = place(table, PartitionSpec(spec_of(table)[0], None))
    return table.at[ids].get(out_sharding=PartitionSpec(*spec_of(ids), None))
