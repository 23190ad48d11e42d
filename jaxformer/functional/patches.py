"""Images as sequences of patches, and learned tables for another grid of patches."""

from collections.abc import Callable, Sequence

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
    return jnp.concatenate([first, _resized(rest, old_grid, new_grid, _cubic_weights)])


def resize_offsets(
    table: jax.Array, old_grid: tuple[int, int], new_grid: tuple[int, int]
) -> jax.Array:
    """A table with a row for each offset between two patches, for another grid, bilinearly.

    The offsets of a grid of (h, w) patches are a grid of (2 h - 1, 2 w - 1).

    Args:
        table: `[(2 h - 1)(2 w - 1) + more, N]`; rows beyond the offsets stay as they are.
        old_grid: (h, w) that the table was trained for.
        new_grid: (h, w) wanted.

    Returns:
        The table for the new grid.

    Raises:
        AssertionError: The table is not a matrix of floating-point numbers.
        ArgumentError: The table has fewer rows than the old grid has offsets.

    References:
        Birkl et al., MiDaS v3.1, 2023 (https://arxiv.org/abs/2307.14460), for BEiT.
    """
    assert_axes(table=(table, "R N"))
    assert_floating(table=table)
    old, new = (
        tuple(2 * size - 1 for size in _pair(name, grid))
        for name, grid in (("old_grid", old_grid), ("new_grid", new_grid))
    )
    count = old[0] * old[1]
    if table.shape[0] < count:
        raise ArgumentError(
            f"table has {table.shape[0]} rows, the grid {tuple(old_grid)} {count} offsets: give "
            "the grid that it was trained for"
        )
    return jnp.concatenate([_resized(table[:count], old, new, _linear_weights), table[count:]])


def _resized(
    rows: jax.Array,
    old: tuple[int, int],
    new: tuple[int, int],
    weights: Callable[[int, int], np.ndarray],
) -> jax.Array:
    """The rows of an old grid `[h w, D]` as those of a new one; each axis by itself."""
    down, across = map(weights, old, new)
    grid = jnp.reshape(rows, (*old, -1))
    precise = jax.lax.Precision.HIGHEST
    grid = jnp.einsum("pr,qc,rcd->pqd", down, across, grid, precision=precise)
    return grid.reshape(-1, rows.shape[1])


def _pair(name: str, sizes: Sequence[int]) -> tuple[int, int]:
    """Two sizes of an image or a grid as Python's integers."""
    two = isinstance(sizes, Sequence | np.ndarray) and len(sizes) == 2
    check_argument(name, sizes, two, "two integers, (rows, columns)")
    rows, columns = (static(name, size, at_least(1)) for size in sizes)
    return rows, columns


def _cubic_weights(old: int, new: int) -> np.ndarray:
    """Returns `[new, old]`: the weight of each old sample of an axis in each new one."""
    a = -0.75

    def kernel(x: np.ndarray) -> np.ndarray:
        near = ((a + 2) * x - (a + 3)) * x**2 + 1
        return np.where(x <= 1, near, (((x - 5) * x + 8) * x - 4) * a)

    return _weights(old, new, (-1, 0, 1, 2), kernel)


def _linear_weights(old: int, new: int) -> np.ndarray:
    """The same for linear interpolation."""
    return _weights(old, new, (0, 1), lambda x: 1 - x)


def _weights(
    old: int, new: int, taps: tuple[int, ...], kernel: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The weights of the samples near each new one; those beyond the border repeat it."""
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old), np.float32)
    for tap in taps:
        sample = np.floor(centres) + tap
        inside = np.clip(sample, 0, old - 1).astype(int)
        np.add.at(weights, (np.arange(new), inside), kernel(np.abs(centres - sample)))
    return weights
