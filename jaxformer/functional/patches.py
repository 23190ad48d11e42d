"""Splitting images into patches, and resizing learned tables to another grid of patches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.checks import at_least
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    gathered,
    place,
    spec_of,
    static,
    static_pair,
)


def overlapping_patches(
    images: jax.Array, size: tuple[int, int], stride: tuple[int, int]
) -> jax.Array:
    r"""Cuts patches that may overlap out of images, row by row.

    .. math:: y_{b,\; i W' + j,\; r,\; s,\; c} = x_{b,\; i S + r,\; j S' + s,\; c}, \quad
              W' = \lfloor (W - Q) / S' \rfloor + 1

    Args:
        images: `[B, height, width, C]`, of any dtype.
        size: (P, Q), at most height and width.
        stride: (S, S'), the rows and columns from one patch to the next.

    Returns:
        `[B, T, P, Q, C]`; rows and columns beyond the last whole patch are left out.

    Raises:
        AssertionError: The images have the wrong number of axes.
        ArgumentError: A patch does not fit into the image.

    References:
        Gong et al., AST (https://arxiv.org/abs/2104.01778), section 2.1.
    """
    assert_axes(images=(images, "B height width C"))
    images = jnp.asarray(images)
    batch, height, width, channels = images.shape
    rows, columns = static_pair("size", size)
    down, across = static_pair("stride", stride)
    if height < rows or width < columns:
        raise ArgumentError(
            f"size: patches of {rows} x {columns} do not fit into images of {height} x {width}"
        )
    high, wide = (height - rows) // down + 1, (width - columns) // across + 1
    bands = [images[:, row : row + down * (high - 1) + 1 : down] for row in range(rows)]
    band = jnp.stack(bands, axis=2)
    cut = [band[:, :, :, col : col + across * (wide - 1) + 1 : across] for col in range(columns)]
    grid = jnp.stack(cut, axis=4)
    spec = spec_of(images)
    by_row = None if spec is None else PartitionSpec(spec[0])
    grid = grid.swapaxes(2, 3)
    return grid.reshape((batch, high * wide, rows, columns, channels), out_sharding=by_row)


def patches(images: jax.Array, size: tuple[int, int]) -> jax.Array:
    r"""Splits images into patches, row by row.

    .. math:: y_{b,\; i W' + j,\; r,\; s,\; c} = x_{b,\; i P + r,\; j Q + s,\; c}, \quad W' = W / Q

    Args:
        images: `[B, height, width, C]`, of any dtype.
        size: (P, Q), divisors of height and width.

    Returns:
        `[B, T, P, Q, C]` with T = (height / P) (width / Q).

    Raises:
        AssertionError: The images have the wrong number of axes.
        ArgumentError: The patches do not fit the image.

    References:
        Dosovitskiy et al., An Image is Worth 16x16 Words (https://arxiv.org/abs/2010.11929).
    """
    assert_axes(images=(images, "B height width C"))
    images = jnp.asarray(images)
    batch, height, width, channels = images.shape
    rows, columns = static_pair("size", size)
    if height % rows or width % columns:
        raise ArgumentError(
            f"size: patches of {rows} x {columns} do not divide images of {height} x {width}"
        )
    spec = spec_of(images)
    by_row = None if spec is None else PartitionSpec(spec[0])  # whole images on each device
    cut = (batch, height // rows, rows, width // columns, columns, channels)
    grid = jnp.reshape(images, cut, out_sharding=by_row).swapaxes(2, 3)
    return grid.reshape((batch, -1, rows, columns, channels), out_sharding=by_row)


def resize_positions(
    table: jax.Array, old_grid: tuple[int, int], new_grid: tuple[int, int], *, prefix: int
) -> jax.Array:
    """Resizes a table of learned positions to another grid of patches by cubic interpolation.

    Args:
        table: `[prefix + rows * columns, D]`.
        old_grid: (rows, columns) that the table was trained for.
        new_grid: The new (rows, columns).
        prefix: Number of leading rows that do not belong to patches (the class token) and are kept.

    Returns:
        `[prefix + new rows * new columns, D]`.

    Raises:
        AssertionError: The table is not a matrix of floating-point numbers.
        ArgumentError: The number of rows does not match the old grid, or a grid is invalid.

    References:
        Dosovitskiy et al., 2020 (https://arxiv.org/abs/2010.11929), section 3.2;
        Keys, 1981, with the coefficient -3/4 and the repeated borders of torch's "bicubic", so that
        resized tables equal those of transformers.
    """
    assert_axes(table=(table, "P D"))
    assert_floating(table=table)
    old_grid = static_pair("old_grid", old_grid)
    new_grid = static_pair("new_grid", new_grid)
    prefix = static("prefix", prefix, at_least(0))
    _check_rows(table, old_grid, prefix)
    first, rest = table[:prefix], table[prefix:]
    return jnp.concatenate([first, _resized(rest, old_grid, new_grid, _cubic_weights)])


def resize_offsets(
    table: jax.Array, old_grid: tuple[int, int], new_grid: tuple[int, int]
) -> jax.Array:
    """Resizes a table of offsets between two patches to another grid by bilinear interpolation.

    The offsets of a grid of (h, w) patches are a grid of (2 h - 1, 2 w - 1).

    Args:
        table: `[(2 h - 1)(2 w - 1) + more, N]`; rows beyond the offsets are kept.
        old_grid: (h, w) that the table was trained for.
        new_grid: The new (h, w).

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
        tuple(2 * size - 1 for size in static_pair(name, grid))
        for name, grid in (("old_grid", old_grid), ("new_grid", new_grid))
    )
    count = old[0] * old[1]
    if table.shape[0] < count:
        raise ArgumentError(
            f"table has {table.shape[0]} rows, the grid {tuple(old_grid)} {count} offsets: pass "
            "the grid that it was trained for"
        )
    return jnp.concatenate([_resized(table[:count], old, new, _linear_weights), table[count:]])


def positions_on_grids(
    table: jax.Array, old_grid: tuple[int, int], grids: jax.Array, *, length: int
) -> jax.Array:
    r"""Resizes a table of learned positions to a separate grid of patches for each image.

    .. math::
        y_{b p} = \sum_{r c} w_r(i_p, h_b)\, w_c(j_p, k_b)\, t_{r c}, \quad
        w_r(i, h) \propto \max\Big(0, 1 - \frac{|r + \frac12 - (i + \frac12) s|}{\max(s, 1)}\Big),
        \quad s = R / h

    for patch p of image b, in row i and column j of its h rows and k columns: bilinear
    interpolation, with antialiasing for smaller grids.

    Args:
        table: `[R C, D]`.
        old_grid: (R, C) that the table was trained for.
        grids: int `[B, 2]`: the numbers of rows and columns of patches of each image, at least 1.
        length: T, the number of positions per image. Positions beyond its patches get the value of
            its first patch.

    Returns:
        float32 `[B, T, D]`, or float64 if the table is.

    Raises:
        AssertionError: The table is not a matrix of floating-point numbers, or the grids are not
            pairs of integers.
        ArgumentError: The table does not have as many rows as the old grid has patches.

    References:
        Tschannen et al., SigLIP 2, 2025 (https://arxiv.org/abs/2502.14786): its NaFlex models.
    """
    assert_axes(table=(table, "P D"), grids=(grids, "B 2"))
    assert_floating(table=table)
    assert_integers(grids=grids)
    old_grid = static_pair("old_grid", old_grid)
    length = static("length", length, at_least(1))
    _check_rows(table, old_grid)
    table = jnp.asarray(table, jnp.promote_types(table.dtype, jnp.float32))
    grids = jnp.asarray(grids)
    rows, columns = grids[:, :1], grids[:, 1:]
    places = jnp.arange(length)[None, :]
    places = jnp.where(places < rows * columns, places, 0)
    across = _antialiased(places % columns, columns, old_grid[1], table.dtype)
    down = _antialiased(places // columns, rows, old_grid[0], table.dtype)
    weights = (down[..., :, None] * across[..., None, :]).reshape(*places.shape, len(table))
    spec = spec_of(weights)
    if spec is not None:
        table = place(gathered(table, weights, 1), PartitionSpec(None, None))
    return jax.lax.dot_general(
        weights,
        table,
        (((2,), (0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        out_sharding=spec,
    )


def _check_rows(table: jax.Array, grid: tuple[int, int], prefix: int = 0) -> None:
    """Raises ArgumentError unless a table has a row for each prefix token and patch of a grid."""
    expected = prefix + grid[0] * grid[1]
    if table.shape[0] != expected:
        raise ArgumentError(
            f"table has {table.shape[0]} rows, the grid {grid} {expected}: pass the grid (and "
            "prefix) that it was trained for"
        )


def _antialiased(places: jax.Array, sizes: jax.Array, old: int, dtype: jnp.dtype) -> jax.Array:
    """Returns `[B, T, old]`, the weights of the old samples of an axis at new positions."""
    scale = (old / sizes.astype(dtype))[..., None]
    centres = (places[..., None] + 0.5).astype(dtype) * scale
    samples = jnp.arange(old, dtype=dtype)[None, None, :] + 0.5
    weights = jnp.maximum(1 - jnp.abs(samples - centres) / jnp.maximum(scale, 1), 0)
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def _resized(
    rows: jax.Array,
    old: tuple[int, int],
    new: tuple[int, int],
    weights: Callable[[int, int], np.ndarray],
) -> jax.Array:
    """Resizes the rows of an old grid `[h w, D]` to a new one, each axis separately."""
    down, across = map(weights, old, new)
    grid = jnp.reshape(rows, (*old, rows.shape[1]))
    precise = jax.lax.Precision.HIGHEST
    grid = jnp.einsum("pr,qc,rcd->pqd", down, across, grid, precision=precise)
    return grid.reshape(new[0] * new[1], rows.shape[1])


def _cubic_weights(old: int, new: int) -> np.ndarray:
    """Returns `[new, old]`, the cubic weight of each old sample of an axis in each new one."""
    a = -0.75

    def kernel(x: np.ndarray) -> np.ndarray:
        near = ((a + 2) * x - (a + 3)) * x**2 + 1
        return np.where(x <= 1, near, (((x - 5) * x + 8) * x - 4) * a)

    return _weights(old, new, (-1, 0, 1, 2), kernel)


def _linear_weights(old: int, new: int) -> np.ndarray:
    """Returns the weights of `_cubic_weights` for linear interpolation."""
    return _weights(old, new, (0, 1), lambda x: 1 - x)


def _weights(
    old: int, new: int, taps: tuple[int, ...], kernel: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Returns the weights of the samples near each new one; samples beyond the border repeat it."""
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old), np.float32)
    for tap in taps:
        sample = np.floor(centres) + tap
        inside = np.clip(sample, 0, old - 1).astype(int)
        np.add.at(weights, (np.arange(new), inside), kernel(np.abs(centres - sample)))
    return weights
