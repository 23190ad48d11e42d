"""The interface of a positional scheme: embed, rotate, bias.

The model calls `embed` once, and attention calls `rotate` and `bias` in every layer; methods that a
scheme does not override are identities inherited from `Position`. The schemes are in
`positional_schemes`.
"""

import abc
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxformer.checks import check_types
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional.norms import Norm
from jaxformer.functional.positions.bias import Bias


@dataclass(frozen=True)
class Position(abc.ABC):  # noqa: B024 (as a choice, the identity is NoPosition)
    """A positional scheme; this base class is the identity everywhere."""

    max_length: ClassVar[int | None] = None
    """The number of positions the scheme can encode; None if there is no limit."""
    learns: ClassVar[bool] = True
    """Whether the scheme's table is trained."""
    shared: ClassVar[bool] = True
    """Whether all layers share a table."""
    after_norm: ClassVar[bool] = False
    """Whether the code is added after the norm of the embeddings."""
    norm: ClassVar[Norm | None] = None
    """The norm of the rows of its table."""
    any_grid: ClassVar[bool] = False
    """Whether each image of a batch may have a different grid of patches (`embed_grids`)."""

    def __post_init__(self):
        check_types(self)

    def table(
        self, *, model_dim: int, num_heads: int
    ) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """Returns the shape and logical axes of the scheme's learned table, or None.

        Args:
            model_dim: D.
            num_heads: N.

        Returns:
            (shape, axis names), as many names as dimensions.
        """
        del model_dim, num_heads
        return None

    def table_values(self, shape: tuple[int, ...]) -> jax.Array | None:
        """Returns the initial values of the scheme's table; None draws them at random."""
        del shape
        return None

    def global_table(
        self, *, model_dim: int, num_heads: int
    ) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """Returns the shape and axes of a second table, for keys that summarize blocks of tokens,
        or None.

        Args:
            model_dim: D.
            num_heads: N.

        Returns:
            (shape, axis names). `bias` gets its rows after those of the first table.
        """
        del model_dim, num_heads
        return None

    def embed(
        self, x: jax.Array, positions: jax.Array, table: jax.Array | None = None
    ) -> jax.Array:
        """Adds the position code to the token embeddings.

        Args:
            x: [B, T, D].
            positions: [B or 1, T] integer positions.
            table: The learned table, if the scheme has one.

        Returns:
            [B, T, D] in the dtype of `x`.
        """
        del positions, table
        return x

    def embed_grids(
        self, x: jax.Array, grids: jax.Array, table: jax.Array | None = None
    ) -> jax.Array:
        """Adds the position code to the patches of images with different grids.

        Args:
            x: [B, T, D]: the patches of each image row by row, then padding.
            grids: int [B, 2]: rows and columns of the patches of each image.
            table: The learned table, if the scheme has one.

        Returns:
            [B, T, D] in the dtype of `x`.
        """
        del grids, table
        return x

    def rotate(
        self,
        query: jax.Array,
        key: jax.Array,
        query_positions: jax.Array,
        key_positions: jax.Array,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Rotates queries and keys by their positions.

        Args:
            query: [B, T, N, H].
            key: [B, S, K, H].
            query_positions: [B or 1, T] integer positions.
            key_positions: [B or 1, S] integer positions.
            lengths: [B] integer: the length of each row, for schemes that depend on it; None uses
                the largest position + 1 for all rows.

        Returns:
            (query, key), same shapes and dtypes.
        """
        del query_positions, key_positions, lengths
        return query, key

    def rotate_values(
        self, value: jax.Array, positions: jax.Array, lengths: jax.Array | None = None
    ) -> jax.Array:
        """Rotates values by their positions.

        Args:
            value: [B, S, K, H].
            positions: [B or 1, S] integer positions.
            lengths: As for `rotate`.

        Returns:
            The same shape and dtype.
        """
        del positions, lengths
        return value

    def changes_at(self, lengths: jax.Array) -> jax.Array | None:
        """Returns whether cached keys become invalid when a row reaches this length.

        The result is bool, of the shape of `lengths`; None means never.

        Args:
            lengths: Integers of any shape: the lengths including the new token.
        """
        del lengths

    def bias(
        self,
        query_positions: jax.Array,
        key_positions: jax.Array,
        *,
        num_heads: int,
        table: jax.Array | None = None,
    ) -> Bias | None:
        """Returns the additive bias of the attention scores, or None.

        Args:
            query_positions: [B or 1, T] integer positions.
            key_positions: [B or 1, S] integer positions.
            num_heads: N, the number of query heads.
            table: The learned table, if the scheme has one.

        Returns:
            A lazy Bias.
        """
        del query_positions, key_positions, num_heads, table
        return None

    def vectors(self, table: jax.Array | None) -> jax.Array | None:
        """Returns the distance vectors that attention multiplies with queries and keys, or None.

        Args:
            table: The learned table, if the scheme has one.

        Returns:
            [R, D], from which attention projects the rows that it needs, see `DistanceEmbedding`.
        """
        del table
        return None

    def with_global_keys(self, bias: Bias, numbers: jax.Array, count: int, size: int) -> Bias:
        """Returns the bias if keys that summarize blocks precede the others.

        By default they have the positions of the first tokens of the blocks.

        Args:
            bias: The bias between the tokens.
            numbers: int [B, T]: the index of each query's block, see `block_numbers`.
            count: The number of blocks (C).
            size: Tokens of a block.

        Returns:
            The bias of T queries and C + S keys.
        """
        del numbers
        starts = bias.key_positions[:, : count * size : size]
        return replace(bias, key_positions=jnp.concatenate([starts, bias.key_positions], axis=1))

    def validate_length(self, length: int) -> None:
        """Raises ConfigError if sequences of `length` tokens exceed the scheme's maximum length."""
        if self.max_length is not None and length > self.max_length:
            raise ConfigError(
                f"{self} has {self.max_length} positions, fewer than the sequence length {length}:"
                f" {self._remedy(length)}, or use sequences of at most {self.max_length} tokens"
            )

    def validate_grid(self, grid: tuple[int, int], prefix: int) -> None:
        """Raises ConfigError if the scheme does not fit the patches of an image.

        Args:
            grid: Rows and columns of the patches, in row-major order.
            prefix: Tokens before them: 1 with a class token.
        """
        self.validate_length(prefix + grid[0] * grid[1])

    def for_grid(self, grid: tuple[int, int], prefix: int) -> "Position":
        """Returns the scheme for another grid of patches.

        Args:
            grid: Rows and columns of the patches.
            prefix: Tokens before them.

        Returns:
            The scheme.
        """
        del grid, prefix
        return self

    def resized(
        self,
        table: jax.Array,
        old_grid: tuple[int, int],
        new_grid: tuple[int, int],
        prefix: int,
    ) -> jax.Array:
        """Resizes the learned table to another grid of patches, if it depends on the grid.

        Args:
            table: The table for the old grid.
            old_grid: Rows and columns of the patches that it was trained for.
            new_grid: The new rows and columns.
            prefix: Tokens before the patches.

        Returns:
            The table of `for_grid(new_grid, prefix)`.
        """
        del old_grid, new_grid, prefix
        return table

    def validate_sizes(self, *, model_dim: int, head_dim: int) -> None:
        """Raises ConfigError if the scheme does not support a model of these sizes."""
        del model_dim, head_dim

    def _required(self, table: jax.Array | None) -> jax.Array:
        """Returns the table of a scheme that requires one."""
        if table is None:
            raise ArgumentError(f"table = None: {self} needs its learned table, see `table()`")
        return table

    def _remedy(self, length: int) -> str:
        return f"set max_length to at least {length}"


@dataclass(frozen=True)
class NoPosition(Position):
    """No positional information: a bidirectional model then cannot distinguish word orders."""
