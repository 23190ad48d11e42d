"""Rotary position embedding: frequencies, angles, rotation, and frequency scaling."""

import abc
import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import FINITE, above, check_types, multiple_of
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    check_choice,
    check_numbers,
    platform,
    static,
)
from jaxformer.functional.derivatives import differentiable, is_zero, pulled, pushed

Frequencies = np.ndarray | jax.Array

# 1 / (2 pi) split into twelve bits, the next twelve bits, and the rest, since the product of two
# twelve-bit numbers is exact in float32.
_PER_TURN_1 = math.floor(2**14 / math.tau) / 2**14
_PER_TURN_2 = math.floor((1 / math.tau - _PER_TURN_1) * 2**26) / 2**26
_PER_TURN_3 = 1 / math.tau - _PER_TURN_1 - _PER_TURN_2


def inverse_frequencies(theta: float, rotary_dim: int) -> np.ndarray:
    r"""Returns the angle per token of each channel pair, `w_i = theta^(-2i / R)`.

    The exponent and the result are rounded to float32, as in the training of published checkpoints:
    at position 100 000 the angles of float64 frequencies are up to 0.003 rad away.

    Args:
        theta: The base; the slowest pair turns once in about `2 pi theta` tokens.
        rotary_dim: R, the number of channels that rotate; even.

    Returns:
        [R / 2] float32, radians per token, a NumPy array (a constant under `jit`).

    References:
        Su et al., 2021, https://arxiv.org/abs/2104.09864
    """
    theta = static("theta", theta, above(0))
    rotary_dim = static("rotary_dim", rotary_dim, multiple_of(2))
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    return (1 / np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)


def _fixed_point_turns(inverse_frequencies: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns radians per token as turns per token in fixed point, with 48 (32 + 16) bits."""
    bits = jax.lax.bitcast_convert_type(inverse_frequencies, jnp.uint32)
    high = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFF000), jnp.float32)
    low = inverse_frequencies - high
    parts = jnp.stack(
        [
            high * _PER_TURN_1,
            low * _PER_TURN_1,
            high * _PER_TURN_2,
            low * _PER_TURN_2 + inverse_frequencies * _PER_TURN_3,
        ]
    )
    ticks = (parts - jnp.floor(parts)) * 2.0**32
    whole = jnp.floor(ticks)
    coarse = jnp.sum(whole.astype(jnp.uint32), axis=0, dtype=jnp.uint32)
    fine = jnp.sum(((ticks - whole) * 2.0**16).astype(jnp.uint32), axis=0, dtype=jnp.uint32)
    return coarse + (fine >> 16), fine & 0xFFFF


def rotary_angles(positions: jax.Array, inverse_frequencies: Frequencies) -> jax.Array:
    r"""Computes the angles `p w_i`, reduced exactly to [-pi, pi].

    `p * w` in float32 is wrong by 0.004 rad at position 100 000, so scores would depend on absolute
    positions. Here w becomes a fixed-point number of turns per token, whose unsigned product with p
    overflows exactly at a whole turn: the phase is linear in p for every integer position, and only
    its conversion to float32 rounds (3e-7 rad).

    Args:
        positions: [..., T] integer positions; may be negative.
        inverse_frequencies: [R / 2] float32, radians per token, not negative.

    Returns:
        [..., T, R / 2] float32 angles in [-pi, pi], differentiable in `inverse_frequencies`.
    """
    assert_axes(positions=(positions, "... T"), inverse_frequencies=(inverse_frequencies, "F"))
    assert_integers(positions=positions)
    assert_floating(inverse_frequencies=inverse_frequencies)
    return _rotary_angles(positions, inverse_frequencies)


@jax.custom_jvp
def _rotary_angles(positions, inverse_frequencies):
    inverse_frequencies = jnp.asarray(inverse_frequencies, jnp.float32)
    column = (1,) * positions.ndim + inverse_frequencies.shape
    coarse, fine = (word.reshape(column) for word in _fixed_point_turns(inverse_frequencies))
    # Only the lower 32 of 64 bits are kept, since whole turns do not matter.
    wide = (positions if positions.dtype.itemsize > 2 else positions.astype(jnp.int32))[..., None]
    upper = (wide >> 16).astype(jnp.uint32)
    lower = (wide & 0xFFFF).astype(jnp.uint32)
    phase = wide.astype(jnp.uint32) * coarse + upper * fine + ((lower * fine) >> 16)
    return jax.lax.bitcast_convert_type(phase, jnp.int32).astype(jnp.float32) * (math.tau / 2**32)


@_rotary_angles.defjvp
def _rotary_angles_jvp(primals, tangents):
    # Integer arithmetic has no derivative; d(p w)/dw = p.
    positions, inverse_frequencies = primals
    slope = jnp.asarray(tangents[1], jnp.float32).reshape((1,) * positions.ndim + (-1,))
    tangent = positions.astype(jnp.float32)[..., None] * slope
    return _rotary_angles(positions, inverse_frequencies), tangent


def apply_rope(
    x: jax.Array,
    positions: jax.Array,
    inverse_frequencies: Frequencies,
    *,
    layout: Literal["half", "interleaved"],
    attention_factor: float = 1.0,
) -> jax.Array:
    r"""Rotates pairs of channels by an angle proportional to the position.

    `(a, b) -> (a cos(p w_i) - b sin(p w_i), b cos(p w_i) + a sin(p w_i))`, so that the product of a
    query at m and a key at n depends only on m - n. With R < H only the first R channels rotate.

    Args:
        x: [B, T, N, H] queries or keys.
        positions: [B or 1, T] integer positions.
        inverse_frequencies: [R / 2] radians per token, R <= H.
        layout: Which channels form pair i: "half" (i, i + R/2; GPT-NeoX, Llama) or "interleaved"
            (2i, 2i + 1; the paper, GPT-J).
        attention_factor: Multiplies cos and sin (YaRN, LongRoPE); the scores get its square.

    Returns:
        [B, T, N, H] in the dtype of `x`; the arithmetic is float32.

    Raises:
        AssertionError: Shapes do not fit together, or an array holds another kind of numbers.
        ArgumentError: The layout is unknown, or there are too many frequencies.

    References:
        Su et al., 2021, https://arxiv.org/abs/2104.09864
    """
    assert_axes(
        x=(x, "B T N H"),
        positions=(positions, "B/1 T"),
        inverse_frequencies=(inverse_frequencies, "F"),
    )
    assert_floating(x=x, inverse_frequencies=inverse_frequencies)
    check_choice("layout", layout, ("half", "interleaved"))
    check_numbers(attention_factor=(attention_factor, FINITE))
    rotary_dim = 2 * inverse_frequencies.shape[0]
    if rotary_dim > x.shape[-1]:
        raise ArgumentError(
            f"inverse_frequencies: {rotary_dim} channels would rotate, but a head of x has "
            f"{x.shape[-1]}: give at most {x.shape[-1] // 2} frequencies"
        )
    rotated = _rotated_by_products if platform() == "tpu" else _rotated_by_slices
    return rotated(x, positions, inverse_frequencies, layout, attention_factor)


def _rotated_by_slices(x, positions, inverse_frequencies, layout, attention_factor):
    """Rotates by the definition, with a separate array for each half of the pairs."""
    rotary_dim = 2 * inverse_frequencies.shape[0]
    angles_BTF = rotary_angles(positions, inverse_frequencies)
    cos_BTNF = (jnp.cos(angles_BTF) * attention_factor)[:, :, None, :]
    sin_BTNF = (jnp.sin(angles_BTF) * attention_factor)[:, :, None, :]
    rotary = x[..., :rotary_dim].astype(jnp.float32)
    rest = x[..., rotary_dim:]
    if layout == "half":
        a_BTNF, b_BTNF = jnp.split(rotary, 2, axis=-1)
    else:
        a_BTNF, b_BTNF = rotary[..., 0::2], rotary[..., 1::2]
    turned = (a_BTNF * cos_BTNF - b_BTNF * sin_BTNF, b_BTNF * cos_BTNF + a_BTNF * sin_BTNF)
    if layout == "half":
        rotary = jnp.concatenate(turned, axis=-1)
    else:
        rotary = jnp.stack(turned, axis=-1).reshape(rotary.shape)
    return jnp.concatenate([rotary.astype(x.dtype), rest], axis=-1)


def _rotated_by_products(x, positions, inverse_frequencies, layout, attention_factor):
    """Computes the rotation without slices, for TPUs."""
    # A TPU pads arrays to 128 channels, so half a head takes as much memory as a whole one. A
    # product with a permutation matrix moves each channel to its partner's position instead.
    head_dim = x.shape[-1]
    rotary_dim = 2 * inverse_frequencies.shape[0]
    of_both = jnp.tile if layout == "half" else jnp.repeat
    # Channels that do not rotate have angle 0.
    frequencies_H = jnp.pad(of_both(inverse_frequencies, 2), (0, head_dim - rotary_dim))
    angles_BTNH = rotary_angles(positions, frequencies_H)[:, :, None, :]
    channels = np.arange(head_dim).reshape(1, 1, 1, head_dim)
    factor_111H = jnp.where(channels < rotary_dim, attention_factor, 1.0)
    sign_111H = np.sign(channels - _partners(head_dim, rotary_dim, layout)).astype(np.float32)
    cos_BTNH = jnp.cos(angles_BTNH) * factor_111H
    sin_BTNH = jnp.sin(angles_BTNH) * factor_111H * sign_111H
    return _turned(x, cos_BTNH, sin_BTNH, rotary_dim=rotary_dim, layout=layout)


def _partners(head_dim: int, rotary_dim: int, layout: str) -> np.ndarray:
    """Returns the partner of each channel; a channel that does not rotate is its own partner."""
    channels = np.arange(head_dim)
    others = (channels + rotary_dim // 2) % rotary_dim if layout == "half" else channels ^ 1
    return np.where(channels < rotary_dim, others, channels)


def _turned_value(x, cos, sin, *, rotary_dim, layout):
    """Computes `x cos + partner(x) sin`, with the sine negated for the first channel of a pair."""
    head_dim = x.shape[-1]
    permutation = np.eye(head_dim)[_partners(head_dim, rotary_dim, layout)]
    # Exact, since each sum has a single nonzero term and the precision keeps all bits.
    partner = jax.lax.dot_general(
        x,
        jnp.asarray(permutation, x.dtype),
        (((x.ndim - 1,), (0,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return (x.astype(jnp.float32) * cos + partner * sin).astype(x.dtype)


def _linearize_turned(moves, x, cos, sin, **static):
    # Fixed frequencies have no gradient, so the values of x are not saved.
    return _turned(x, cos, sin, **static), (x if any(moves[1:]) else None, cos, sin)


def _push_turned(residuals, tangents, **static):
    x, cos, sin = residuals
    dx, dcos, dsin = tangents
    parts = [] if is_zero(dx) else [_turned(dx, cos, sin, **static)]
    if x is not None:
        of_angles = partial(_turned_value, x, **static)
        parts.append(pushed(of_angles, (cos, sin), (dcos, dsin)))
    return sum(parts[1:], parts[0])


def _pull_turned(residuals, cotangent, **static):
    # Rotates back with a single rounding; the transpose of the sum would round each term.
    x, cos, sin = residuals
    dx = _turned(cotangent, cos, -sin, **static)
    if x is None:
        return dx, None, None
    return dx, *pulled(partial(_turned_value, x, **static), (cos, sin), cotangent)


_turned = differentiable(_turned_value, _linearize_turned, _push_turned, _pull_turned)


@dataclass(frozen=True)
class Scaling(abc.ABC):  # noqa: B024 (as a choice, the identity is NoScaling)
    """Base class of RoPE frequency scaling beyond the trained length; the default is no scaling."""

    @property
    def logit_factor(self) -> float:
        """The factor of the logits in DeepSeek's attention, in addition to cos and sin."""
        return 1.0

    def __post_init__(self):
        check_types(self)

    def frequencies(
        self, theta: float, rotary_dim: int, length: jax.Array | int
    ) -> tuple[Frequencies, float]:
        """Returns the scaled frequencies, a pure function of the fields and arguments.

        Args:
            theta: The base of the unscaled frequencies.
            rotary_dim: R, the number of channels that rotate; even.
            length: L, the largest position of the batch + 1; may be traced.

        Returns:
            [R / 2] float32, radians per token, and the multiplier of cos and sin.
        """
        del length
        return inverse_frequencies(theta, rotary_dim), 1.0

    def changes_at(self, lengths: jax.Array) -> jax.Array | None:
        """Returns whether the frequencies change when a row reaches this length.

        The result is bool, of the shape of `lengths`; None means never.

        Args:
            lengths: Integer, of any shape.
        """
        del lengths

    def validate_rotary_dim(self, rotary_dim: int) -> None:
        """Raises ConfigError if the scaling does not support this number of rotating channels."""
        del rotary_dim


@dataclass(frozen=True)
class NoScaling(Scaling):
    """Unscaled frequencies."""
