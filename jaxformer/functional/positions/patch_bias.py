"""Biases on the attention scores by the offset between two patches of an image."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.checks import at_least
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    spec_of,
    static,
    static_pair,
)
from jaxformer.functional.patches import resize_offsets
from jaxformer.functional.positions.bias import Bias
from jaxformer.functional.positions.schemes import OnGrid

_OF_PREFIX = 3


def patch_bias(
    table: jax.Array,
    query_positions: jax.Array,
    key_positions: jax.Array,
    *,
    grid: tuple[int, int],
    prefix: int,
) -> jax.Array:
    r"""Returns a learned scalar per head and offset in rows and columns from a key to a query.

    .. math:: b_{n,q,k} = t_{(r_q - r_k + h - 1)(2 w - 1) + c_q - c_k + w - 1,\; n}

    for patches in row r and column c of a grid of h x w. The last three rows of the table are for
    the tokens before the patches: from such a query to a patch, from a patch to such a key, and
    from one of these tokens to another. In explicit sharding mode the batch follows the positions
    and the heads follow the table.

    Args:
        table: [(2 h - 1)(2 w - 1) + 3, N]; without a prefix the last three rows are absent.
        query_positions: [B or 1, T] integer positions: first the prefix, then the patches row by
            row.
        key_positions: [B or 1, S] integer positions.
        grid: (h, w).
        prefix: Number of positions before the patches.

    Returns:
        [B or 1, N, T, S] float32.

    Raises:
        ArgumentError: The table has the wrong number of rows.

    References: Bao et al., BEiT, 2022 (https://arxiv.org/abs/2106.08254), whose published models
        use it; Liu et al., Swin Transformer, 2021 (https://arxiv.org/abs/2103.14030), equation 4.
    """
    assert_axes(
        table=(table, "rows N"),
        query_positions=(query_positions, "_ T"),
        key_positions=(key_positions, "_ S"),
    )
    assert_floating(table=table)
    assert_integers(query_positions=query_positions, key_positions=key_positions)
    grid = static_pair("grid", grid)
    prefix = static("prefix", prefix, at_least(0))
    if table.shape[0] != (rows := _num_rows(grid, prefix)):
        raise ArgumentError(
            f"table has {table.shape[0]} rows: must be {rows} for grid = {grid} and prefix = "
            f"{prefix}"
        )
    index_BTS = _index(query_positions[:, :, None], key_positions[:, None, :], grid, prefix)
    pairs = spec_of(index_BTS)
    heads = jax.typeof(table).sharding.spec[1]
    out = None if pairs is None else PartitionSpec(*pairs, heads)
    found_BTSN = jnp.asarray(table, jnp.float32).at[index_BTS].get(out_sharding=out)
    return found_BTSN.transpose(0, 3, 1, 2)


def _num_rows(grid: tuple[int, int], prefix: int) -> int:
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + (_OF_PREFIX if prefix else 0)


def _index(query: jax.Array, key: jax.Array, grid: tuple[int, int], prefix: int) -> jax.Array:
    """Returns the row of the table for each pair of positions."""
    (height, width), offsets = grid, _num_rows(grid, 0)

    def place(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Positions beyond the grid have no patch, so use the last one.
        patch = jnp.clip(position - prefix, 0, height * width - 1)
        return patch // width, patch % width

    (query_row, query_column), (key_row, key_column) = place(query), place(key)
    down = query_row - key_row + height - 1
    across = query_column - key_column + width - 1
    index = down * (2 * width - 1) + across
    if not prefix:
        return index
    index = jnp.where(query < prefix, offsets, index)
    index = jnp.where(key < prefix, offsets + 1, index)
    return jnp.where((query < prefix) & (key < prefix), offsets + 2, index)


@dataclass(frozen=True)
class PatchBias(OnGrid):
    """Adds a learned scalar per head and offset between two patches of an image (BEiT)."""

    grid: tuple[int, int]
    """Rows and columns of patches, in row-major order."""
    prefix: int = 1
    """Number of tokens before the patches: 1 with a class token. They have separate entries."""
    shared: bool = field(default=True, kw_only=True)
    """Whether all layers share one table."""

    def table(self, *, model_dim, num_heads):
        del model_dim
        return (_num_rows(self.grid, self.prefix), num_heads), ("buckets", "heads")

    def bias(self, query_positions, key_positions, *, num_heads, table=None):
        del num_heads
        return Bias(self._required(table), query_positions, key_positions, self)

    def score(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """See `patch_bias`; `heads` is the table."""
        return patch_bias(heads, query_positions, key_positions, grid=self.grid, prefix=self.prefix)

    def resized(self, table, old_grid, new_grid, prefix):
        del prefix
        return resize_offsets(table, old_grid, new_grid)
