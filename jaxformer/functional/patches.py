"""Images as sequences of patches, and learned positions for another grid of patches."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.checks import at_least
from jaxformer.errors import ArgumentError, check_argument
from jaxformer.functional.assertions import assert_axes, assert_floating, static
from jaxformer.functional.placement import spec_of


def patches(images: jax.Array, size: tuple[int, int]) -> jax.Array:
    r"""Cuts images into patches, row by row.

    .. math:: y_{b,\; i W' + j,\; r,\; s,\; c} = x_{b,\; i P + r,\; j Q + s,\; c}, \quad W' = W / Q

    Args:
        images: `[B, height, width, C]`, of any dtype.
        size: (P, Q), which divide height and width.

    Returns:
        `[B, T, P, Q, C]` with T = (height / P) (width / Q).

    Raises:
        AssertionError: The images have other axes.
        ArgumentError: The patches do not fit the image.

    References:
        Dosovitskiy et al., An Image is Worth 16x16 Words (https://arxiv.org/abs/2010.11929).
    """
    assert_axes(images=(images, "B height width C"))
    images = jnp.asarray(images)
    batch, height, width, channels = images.shape
    rows, columns = _pair("size", size)
    if height % rows or width % columns:
        raise ArgumentError(
            f"size: patches of {rows} x {columns} do not fit images of {height} x {width}"
        )
    spec = spec_of(images)
    by_row = None if spec is None else PartitionSpec(spec[0])  # whole images on each device
    cut = (batch, height // rows, rows, width // columns, columns, channels)
    grid = jnp.reshape(images, cut, out_sharding=by_row).swapaxes(2, 3)
    return grid.reshape((batch, -1, rows, columns, channels), out_sharding=by_row)


def resize_positions(
    table: jax.Array, old_grid: tuple[int, int], new_grid: tuple[int, int], *, prefix: int
) -> jax.Array:
    """A table of learned positions for another grid of patches, by cubic convolution.

    Args:
        table: `[prefix + rows * columns, D]`.
        old_grid: (rows, columns) that the table was trained for.
        new_grid: (rows, columns) wanted.
        prefix: Rows of the table that belong to no patch (the class token) and stay as they are.

    Returns:
        `[prefix + new rows * new columns, D]`.

    Raises:
        AssertionError: The table is not a matrix of floating-point numbers.
        ArgumentError: The table does not have as many rows as the old grid, or a grid is none.

    References:
        Dosovitskiy et al., 2020 (https://arxiv.org/abs/2010.11929), section 3.2;
        Keys, 1981, with the coefficient -3/4 and the repeated borders of torch's "bicubic", so that
        resized tables are those that transformers makes.
    """
    assert_axes(table=(table, "P D"))
    assert_floating(table=table)
    old_grid, new_grid = _pair("old_grid", old_grid), _pair("new_grid", new_grid)
    prefix = static("prefix", prefix, at_least(0))
    expected = prefix + old_grid[0] * old_grid[1]
    if table.shape[0] != expected:
        raise ArgumentError(
            f"table has {table.shape[0]} rows, the grid {old_grid} {expected}: give the grid (and "
            "prefix) that it was trained for"
        )
    first, rest = table[:prefix], table[prefix:]
    rows, columns = map(_cubic_weights, old_grid, new_grid)
    resized = jnp.einsum("pr,qc,rcd->pqd", rows, columns, rest.reshape(*old_grid, -1))
    return jnp.concatenate([first, resized.reshape(-1, table.shape[1])])


def _pair(name: str, sizes: Sequence[int]) -> tuple[int, int]:
    """Two sizes of an image or a grid as Python's integers."""
    two = isinstance(sizes, Sequence | np.ndarray) and len(sizes) == 2
    check_argument(name, sizes, two, "two integers, (rows, columns)")
    rows, columns = (static(name, size, at_least(1)) for size in sizes)
    return rows, columns


def _cubic_weights(old: int, new: int) -> np.ndarray:
    """Returns `[new, old]`: the weight of each old sample of an axis in each new one."""
    a = -0.75
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old), np.float32)
    for tap in (-1, 0, 1, 2):
        sample = np.floor(centres) + tap
        x = np.abs(centres - sample)
        near = ((a + 2) * x - (a + 3)) * x**2 + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        inside = np.clip(sample, 0, old - 1).astype(int)
        np.add.at(weights, (np.arange(new), inside), np.where(x <= 1, near, far))
    return weights
