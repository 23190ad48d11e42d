"""Absolute position codes: integer, binary, sinusoidal in one or two axes, learned lookup."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import SWITCH, above, at_least, between, multiple_of
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_ids,
    assert_integers,
    check_choice,
    static,
)
from jaxformer.functional.linear import lookup
from jaxformer.functional.positions.rope import rotary_angles


def integer_code(positions: jax.Array, *, max_length: int) -> jax.Array:
    """Returns the index as a single feature, `p / max_length`.

    Args:
        positions: [..., T] integer positions.
        max_length: The length in tokens that maps to 1.

    Returns:
        [..., T, 1] float32.
    """
    assert_axes(positions=(positions, "... T"))
    assert_integers(positions=positions)
    max_length = static("max_length", max_length, at_least(1))
    return (positions.astype(jnp.float32) / max_length)[..., None]


def binary_code(positions: jax.Array, *, num_bits: int) -> jax.Array:
    """Returns the binary digits of the index, least significant first, `floor(p / 2^i) mod 2`.

    Args:
        positions: [..., T] integer positions; distinct codes below `2^num_bits`.
        num_bits: Number of digits, at most 31.

    Returns:
        [..., T, num_bits] float32, zeros and ones.
    """
    assert_axes(positions=(positions, "... T"))
    assert_integers(positions=positions)
    num_bits = static("num_bits", num_bits, between(1, 31))
    places = jnp.arange(num_bits, dtype=positions.dtype)
    places = places.reshape((1,) * positions.ndim + (num_bits,))
    return ((positions[..., None] >> places) & 1).astype(jnp.float32)


def sinusoidal_frequencies(model_dim: int, theta: float, endpoint: bool = False) -> np.ndarray:
    r"""Returns the angle per token of each pair of a sinusoidal code, `w_i = theta^(-2i / D)`.

    Args:
        model_dim: D, even.
        theta: The base, 10000 in the paper.
        endpoint: Whether 1 / theta is the last frequency: then frequencies are `theta^(-i / (D/2 -
            1))`; otherwise 1 / theta would be the next one.

    Returns:
        [D / 2] float64, radians per token, a NumPy array.

    Raises:
        ArgumentError: `model_dim` is odd, or `theta` not positive.

    References:
        Vaswani et al., 2017 (section 3.5), https://arxiv.org/abs/1706.03762
    """
    model_dim = static("model_dim", model_dim, multiple_of(2))
    theta = static("theta", theta, above(0))
    endpoint = static("endpoint", endpoint, SWITCH)
    waves = model_dim // 2
    return np.float64(theta) ** (-np.arange(waves) / max(waves - endpoint, 1))


def sinusoidal_code(
    positions: jax.Array,
    *,
    model_dim: int,
    theta: float,
    layout: Literal["interleaved", "half"],
    endpoint: bool = False,
) -> jax.Array:
    r"""Sines and cosines of the index at geometrically spaced frequencies `w_i = theta^(-2i / D)`.

    `PE(p)` holds the pairs `(sin(p w_i), cos(p w_i))`, so that `PE(p + k)` is `PE(p)` with pair i
    rotated by `k w_i`. With `endpoint` the frequencies are `theta^(-i / (D/2 - 1))`, down to 1 /
    theta itself.

    Args:
        positions: [..., T] integer positions.
        model_dim: D, even.
        theta: The base, 10000 in the paper.
        layout: "interleaved" (sin, cos, sin, cos, ...; the paper) or "half" (all sines, then all
            cosines; Marian, Pegasus).
        endpoint: Whether 1 / theta is one of the frequencies (fairseq, M2M-100, Whisper).

    Returns:
        [..., T, D] float32.

    Raises:
        AssertionError: `positions` are not integers.
        ArgumentError: `model_dim` is odd, `theta` not positive or the layout unknown.

    References:
        Vaswani et al., 2017 (section 3.5), https://arxiv.org/abs/1706.03762
    """
    assert_axes(positions=(positions, "... T"))
    assert_integers(positions=positions)
    check_choice("layout", layout, ("interleaved", "half"))
    exact = sinusoidal_frequencies(model_dim, theta, endpoint)
    rounded = exact.astype(np.float32)
    # The rounding error of the frequency is added as a small second angle.
    residual = (exact - rounded).astype(np.float32).reshape((1,) * positions.ndim + (-1,))
    angles = rotary_angles(positions, rounded)
    angles = angles + positions.astype(jnp.float32)[..., None] * residual
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    if layout == "interleaved":
        return jnp.stack([sin, cos], axis=-1).reshape((*positions.shape, model_dim))
    return jnp.concatenate([sin, cos], axis=-1)


def sinusoidal_grid_code(
    rows: jax.Array, columns: jax.Array, *, model_dim: int, theta: float
) -> jax.Array:
    r"""Sines and cosines of the column in the first half of the channels, of the row in the second.

    .. math:: \mathrm{PE}(r, c) = [\mathrm{PE}_{D/2}(c),\; \mathrm{PE}_{D/2}(r)]

    with all sines before all cosines in either half.

    Args:
        rows: [..., T] integer rows.
        columns: [..., T] integer columns.
        model_dim: D, a multiple of 4.
        theta: The base of the frequencies.

    Returns:
        [..., T, D] float32.

    Raises:
        AssertionError: `rows` and `columns` differ in shape, or are not integers.
        ArgumentError: `model_dim` is not a multiple of 4, or `theta` not positive.

    References: Dosovitskiy et al., 2020 (appendix D.4), https://arxiv.org/abs/2010.11929; He et
        al., Masked Autoencoders, 2021, https://arxiv.org/abs/2111.06377, whose code uses this order
        of channels.
    """
    assert_axes(rows=(rows, "... T"))
    assert_integers(rows=rows)
    assert_axes(columns=(columns, " ".join(map(str, rows.shape))))
    assert_integers(columns=columns)
    model_dim = static("model_dim", model_dim, multiple_of(4))
    half = {"model_dim": model_dim // 2, "theta": theta, "layout": "half"}
    codes = [sinusoidal_code(places, **half) for places in (columns, rows)]
    return jnp.concatenate(codes, axis=-1)


def learned_code(table: jax.Array, positions: jax.Array) -> jax.Array:
    """Returns row p of a learned table.

    Args:
        table: [P, D], one row per position.
        positions: [..., T] integer positions below P; larger ones in a `jax.Array` read another
            row.

    Returns:
        [..., T, D] in the dtype of `table`.
    """
    assert_axes(table=(table, "P D"), positions=(positions, "... T"))
    assert_floating(table=table)
    assert_ids(table.shape[0], positions=positions)
    return lookup(jnp.asarray(table), positions)
