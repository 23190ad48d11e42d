"""Learned positions of patches, with a table that is resized to the grid of each image."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp

from jaxformer.functional.patches import positions_on_grids
from jaxformer.functional.positions.absolute import learned_code
from jaxformer.functional.positions.schemes import OnGrid


@dataclass(frozen=True)
class Learned2D(OnGrid):
    """Adds a learned vector per patch, interpolated for images with another grid (SigLIP 2).

    There are no tokens before the patches.
    """

    any_grid: ClassVar[bool] = True
    prefix: ClassVar[int] = 0
    grid: tuple[int, int]
    """Rows and columns of the table, in row-major order."""

    def table(self, *, model_dim, num_heads):
        del num_heads
        return (self.max_length, model_dim), ("positions", "embed")

    def embed(self, x, positions, table=None):
        return x + learned_code(self._required(table), positions).astype(x.dtype)

    def embed_grids(self, x, grids, table=None):
        table, length = self._required(table), x.shape[1]
        return x + positions_on_grids(table, self.grid, grids, length=length).astype(x.dtype)

    def for_grid(self, grid, prefix):
        del prefix
        return replace(self, grid=grid)

    def resized(self, table, old_grid, new_grid, prefix):
        del prefix
        grids = jnp.array([new_grid])
        length = new_grid[0] * new_grid[1]
        return positions_on_grids(table, old_grid, grids, length=length)[0]
