"""Properties of sinusoidal and RoPE frequencies: wavelengths, inner products and decay."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import POSITIVE, at_least, check_argument
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    check_choice,
    check_numbers,
    static,
)
from jaxformer.functional.positions.rope import Frequencies, apply_rope, rotary_angles

_CHUNK = 1 << 14


def wavelengths(frequencies: Frequencies) -> Frequencies:
    r"""Returns the wavelength of each channel pair in tokens, `2 pi / w_i`.

    With `w_i = theta^(-2i / R)` they grow from `2 pi` towards `2 pi theta`: 20,000 pi for the base
    10,000, which only frequencies with `endpoint` reach.

    Args:
        frequencies: [F] radians per token, above 0.

    Returns:
        [F] tokens.
    """
    assert_axes(frequencies=(frequencies, "F"))
    assert_floating(frequencies=frequencies)
    return math.tau / frequencies


def code_inner_products(frequencies: Frequencies, distances: jax.Array) -> jax.Array:
    r"""Returns the inner product of two sinusoidal codes, which depends only on their distance.

    .. math:: \langle \mathrm{PE}(m), \mathrm{PE}(n) \rangle = \sum_i \cos(w_i (m - n))

    It is also the RoPE score of a query and a key with the unit vector (1, 0) in every pair.

    Args:
        frequencies: [F] radians per token, of `sinusoidal_frequencies` or `inverse_frequencies`.
        distances: [...] integers, m - n.

    Returns:
        [...] float32, between -F and F.

    References:
        Vaswani et al., 2017 (section 3.5), https://arxiv.org/abs/1706.03762
    """
    return jnp.sum(jnp.cos(_angles(frequencies, distances)), axis=-1)


def rotation_matrix(
    positions: jax.Array,
    frequencies: Frequencies,
    *,
    layout: Literal["half", "interleaved"],
) -> jax.Array:
    r"""Returns RoPE as a matrix: `apply_rope(x, p) = R_p x`, with `R_m^T R_n = R_{n - m}`.

    Args:
        positions: [T] integers.
        frequencies: [R / 2] radians per token.
        layout: Which channels form a pair, see `apply_rope`.

    Returns:
        [T, R, R] float32, orthogonal.

    References:
        Su et al., 2021 (equations 14 to 16), https://arxiv.org/abs/2104.09864
    """
    assert_axes(positions=(positions, "T"), frequencies=(frequencies, "F"))
    assert_floating(frequencies=frequencies)
    unit_RR = jnp.eye(2 * frequencies.shape[0])
    unit_BTRR = jnp.broadcast_to(unit_RR, (1, *positions.shape, *unit_RR.shape))
    frequencies = jnp.asarray(frequencies, jnp.float32)
    # The images of the unit vectors are the columns.
    columns = apply_rope(unit_BTRR, positions[None], frequencies, layout=layout)
    return columns[0].mT


def rope_decay(frequencies: Frequencies, distances: jax.Array) -> jax.Array:
    r"""Returns the long-term decay of RoPE: the decay of the bound on scores with the distance.

    .. math:: \frac{1}{F} \sum_{j=1}^{F} |S_j|, \qquad S_j = \sum_{i=0}^{j-1} e^{\mathrm{i} w_i d}

    The sum is the factor of `rope_score_bound` that depends on the distance.

    Args:
        frequencies: [F] radians per token.
        distances: [...] integers.

    Returns:
        [...] float32, at most (F + 1) / 2, its value at distance 0.

    References:
        Su et al., 2021 (section 3.4.3 and figure 2), https://arxiv.org/abs/2104.09864
    """
    return jnp.mean(_partial_sums(frequencies, distances), axis=-1)


def rope_score_bound(
    query: jax.Array,
    key: jax.Array,
    frequencies: Frequencies,
    distances: jax.Array,
    *,
    layout: Literal["half", "interleaved"],
) -> jax.Array:
    r"""Returns the paper's bound on the score of a rotated query and key, from summation by parts.

    .. math::
        |\langle R_m q, R_n k \rangle| \le \max_i |h_{i+1} - h_i| \sum_{j=1}^{F} |S_j|,
        \qquad h_i = q_i \bar{k}_i

    with the pairs of channels as complex numbers, `h_F = 0`, d = m - n, and S of `rope_decay`.

    Args:
        query: [..., R], before its rotation.
        key: [..., R], before its rotation, in the shape of `query`.
        frequencies: [R / 2] radians per token.
        distances: [T] integers, m - n.
        layout: Which channels form a pair, see `apply_rope`.

    Returns:
        [..., T] float32.

    References:
        Su et al., 2021 (section 3.4.3), https://arxiv.org/abs/2104.09864
    """
    assert_axes(frequencies=(frequencies, "F"), distances=(distances, "T"))
    assert_axes({"R": 2 * frequencies.shape[0]}, query=(query, "... R"))
    assert_axes(query=(query, "... R"), key=(key, " ".join(map(str, query.shape))))
    assert_floating(query=query, key=key)
    products = _pairs(query, layout) * jnp.conj(_pairs(key, layout))
    following = jnp.concatenate([products[..., 1:], jnp.zeros_like(products[..., :1])], axis=-1)
    largest = jnp.max(_magnitude(following - products), axis=-1, keepdims=True)
    sums = jnp.sum(_partial_sums(frequencies, distances), axis=-1)
    return largest * sums.reshape((1,) * (largest.ndim - 1) + (-1,))


def code_distance(frequencies: Frequencies, distances: jax.Array) -> jax.Array:
    r"""Returns the distance between two sinusoidal codes, relative to their norm.

    .. math:: \frac{\|\mathrm{PE}(p + d) - \mathrm{PE}(p)\|}{\|\mathrm{PE}(p)\|}
              = \sqrt{\frac{2}{F} \sum_i (1 - \cos(w_i d))}

    Args:
        frequencies: [F] radians per token.
        distances: [...] integers, d.

    Returns:
        [...] float32, from 0 to 2.
    """
    # 1 - cos a = 2 sin^2(a / 2), without cancellation.
    halves = jnp.sin(_angles(frequencies, distances) / 2)
    return 2 * jnp.sqrt(jnp.mean(jnp.square(halves), axis=-1))


def first_return(frequencies: Frequencies, tolerance: float, limit: int) -> int | None:
    """Returns the smallest distance at which a sinusoidal code returns to itself.

    It is the same for all positions, because `code_distance` depends only on the distance.

    Args:
        frequencies: [F] radians per token.
        tolerance: The `code_distance` below which two codes count as equal; must be smaller than
            that of neighbors.
        limit: The largest distance to try.

    Returns:
        The distance, or None if there is none up to the limit.

    Raises:
        ArgumentError: `tolerance` is not a positive number, or `limit` below 1.
    """
    assert_axes(frequencies=(frequencies, "F"))
    assert_floating(frequencies=frequencies)
    check_numbers(tolerance=(tolerance, POSITIVE))
    limit = static("limit", limit, at_least(1))
    for start in range(1, limit + 1, _CHUNK):
        distances = np.arange(start, min(start + _CHUNK, limit + 1))
        turns = distances[:, None] * (np.asarray(frequencies, np.float64) / math.tau)
        squares = 4 * np.mean(np.sin(math.pi * turns) ** 2, axis=-1)
        if (near := squares <= tolerance**2).any():
            return int(distances[near.argmax()])
    return None


def _angles(frequencies: Frequencies, distances: jax.Array) -> jax.Array:
    """Returns the angle of every pair, [..., F], with exact range reduction."""
    assert_axes(frequencies=(frequencies, "F"))
    assert_floating(frequencies=frequencies)
    assert_integers(distances=distances)
    some = frequencies.shape[0] > 0
    check_argument("frequencies", frequencies, some, "an array of at least one frequency")
    rounded = jnp.asarray(frequencies, jnp.float32)
    return rotary_angles(jnp.asarray(distances)[..., None], rounded)[..., 0, :]


def _partial_sums(frequencies: Frequencies, distances: jax.Array) -> jax.Array:
    """Returns |S_1| .. |S_F|, [..., F]."""
    angles = _angles(frequencies, distances)
    return _magnitude(jnp.cumsum(jnp.cos(angles) + 1j * jnp.sin(angles), axis=-1))


def _magnitude(z: jax.Array) -> jax.Array:
    """Returns |z|, avoiding the NaN second derivative of `jnp.abs` for complex numbers."""
    squared = jnp.square(z.real) + jnp.square(z.imag)
    # The derivative of the square root is infinite at 0.
    zero = squared == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squared)))


def _pairs(x: jax.Array, layout: Literal["half", "interleaved"]) -> jax.Array:
    """Returns channel pairs as complex numbers, [..., R] -> [..., R / 2]."""
    check_choice("layout", layout, ("half", "interleaved"))
    x = jnp.asarray(x, jnp.float32)
    real, imaginary = jnp.split(x, 2, axis=-1) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    return real + 1j * imaginary
