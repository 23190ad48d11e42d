"""Two-dimensional rotary embedding of patches: rows rotate half of the channel pairs, columns the
other half.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import POSITIVE, above, at_least, check_argument, check_fields
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    check_numbers,
    static,
)
from jaxformer.functional.positions.schemes import OnGrid


def patch_angles(
    positions: jax.Array, *, grid: tuple[int, int], prefix: int, theta: float, head_dim: int
) -> jax.Array:
    r"""Returns the rotation angles of the channel pairs of each patch.

    .. math:: \alpha_{i} = 2 \pi y\, \theta^{-4 i / H}, \quad
        \alpha_{H / 4 + i} = 2 \pi x\, \theta^{-4 i / H}

    where y and x are the center of the patch in an image from -1 to 1. Tokens before the patches
    are not rotated.

    Args:
        positions: int `[B or 1, T]`: first the prefix, then the patches row by row.
        grid: Rows and columns of the patches.
        prefix: Number of positions before the patches.
        theta: The base.
        head_dim: H, a multiple of 4.

    Returns:
        float32 `[B or 1, T, H / 2]`.

    Raises:
        ArgumentError: `theta` is not positive, or a size is invalid.

    References:
        Siméoni et al., DINOv3, 2025 (https://arxiv.org/abs/2508.10104), section 3.2.
    """
    assert_axes(positions=(positions, "_ T"))
    assert_integers(positions=positions)
    check_numbers(theta=(theta, POSITIVE))
    prefix = static("prefix", prefix, at_least(0))
    head_dim = static("head_dim", head_dim, at_least(4))
    check_argument("head_dim", head_dim, head_dim % 4 == 0, "a multiple of 4")
    sized = isinstance(grid, tuple) and len(grid) == 2 and all(map(at_least(1).allows, grid))
    check_argument("grid", grid, sized, "the numbers of rows and columns, such as (14, 14)")
    exponents = np.arange(0, 1, 4 / head_dim, dtype=np.float32)
    frequencies = (1 / np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)
    patch = jnp.maximum(positions - prefix, 0)
    places = jnp.stack([patch // grid[1], patch % grid[1]], axis=-1).astype(jnp.float32)
    centres = 2.0 * ((places + 0.5) / np.asarray(grid, np.float32).reshape(1, 1, 2)) - 1.0
    angles = 2 * math.pi * centres[..., None] * frequencies.reshape(1, 1, 1, -1)
    angles = angles.reshape(*positions.shape, head_dim // 2)
    return jnp.where(positions[..., None] < prefix, 0.0, angles)


@dataclass(frozen=True)
class RoPE2D(OnGrid):
    """Rotates queries and keys of patches by their row and column in an image (DINOv3).

    Tokens before the patches are not rotated.
    """

    grid: tuple[int, int]
    """Rows and columns of patches, in row-major order."""
    theta: float = 100.0
    """Base of the frequencies."""
    prefix: int = 1
    """Number of tokens before the patches: 1 with a class token."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, theta=above(1))

    def rotate(self, query, key, query_positions, key_positions, lengths=None):
        del lengths
        return self._rotated(query, query_positions), self._rotated(key, key_positions)

    def _rotated(self, x_BTNH: jax.Array, positions: jax.Array) -> jax.Array:
        assert_axes(x=(x_BTNH, "B T N H"), positions=(positions, "B/1 T"))
        assert_floating(x=x_BTNH)
        options = {"grid": self.grid, "prefix": self.prefix, "theta": self.theta}
        angles = patch_angles(positions, head_dim=x_BTNH.shape[-1], **options)[:, :, None, :]
        a_BTNF, b_BTNF = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        turned = (a_BTNF * cos - b_BTNF * sin, b_BTNF * cos + a_BTNF * sin)
        return jnp.concatenate(turned, axis=-1).astype(x_BTNH.dtype)

    def validate_sizes(self, *, model_dim, head_dim):
        del model_dim
        if head_dim % 4:
            raise ConfigError(f"head_dim = {head_dim}: must be a multiple of 4 for {self}")
