"""Rotary position embedding: frequencies, the published ways to stretch them, angles, rotation."""

import math
from dataclasses import dataclass
from typing import Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError

Frequencies = np.ndarray | jax.Array

# 1 / (2 pi) as twelve bits, the next twelve bits, and the rest: the product of two twelve-bit
# numbers is exact in float32.
_PER_TURN_1 = math.floor(2**14 / math.tau) / 2**14
_PER_TURN_2 = math.floor((1 / math.tau - _PER_TURN_1) * 2**26) / 2**26
_PER_TURN_3 = 1 / math.tau - _PER_TURN_1 - _PER_TURN_2


def inverse_frequencies(theta: float, rotary_dim: int) -> np.ndarray:
    r"""The angle by which each pair of channels turns per token, `w_i = theta^(-2i / R)`.

    The exponent and the result are rounded to float32, because published checkpoints were trained
    so: at position 100 000 the angles of float64 frequencies are up to 0.003 rad away.

    Args:
        theta: the base; the slowest pair turns once in about `2 pi theta` tokens.
        rotary_dim: R, the number of channels that rotate; even.

    Returns:
        [R / 2] float32, radians per token, a NumPy array (a constant under `jit`).

    Reference:
        Su et al., 2021, https://arxiv.org/abs/2104.09864
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"rotary_dim = {rotary_dim}: must be even and at least 2")
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    return (1 / np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)


def _fixed_point_turns(inverse_frequencies: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Radians per token as turns per token with 48 binary places, in two uint32 words (32 + 16)."""
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


@jax.custom_jvp
def rotary_angles(positions: jax.Array, inverse_frequencies: Frequencies) -> jax.Array:
    r"""The angles `p w_i`, reduced exactly to half a turn either side of zero.

    `p * w` in float32 is wrong by 0.004 rad at position 100 000, so that a score would depend on
    where two tokens stand and not only on their distance. Here w becomes a fixed-point number of
    turns per token, whose unsigned product with p overflows exactly at a whole turn: the phase is
    linear in p for every int32 position, and only its conversion to float32 rounds (3e-7 rad).

    Args:
        positions: [..., T] integer positions; may be negative.
        inverse_frequencies: [R / 2] float32, radians per token, not negative.

    Returns:
        [..., T, R / 2] float32 angles in [-pi, pi], differentiable in `inverse_frequencies`.
    """
    chex.assert_type(positions, int)
    chex.assert_rank(inverse_frequencies, 1)
    inverse_frequencies = jnp.asarray(inverse_frequencies, jnp.float32)
    column = (1,) * positions.ndim + inverse_frequencies.shape
    coarse, fine = (word.reshape(column) for word in _fixed_point_turns(inverse_frequencies))
    signed = positions.astype(jnp.int32)[..., None]
    upper, lower = (signed >> 16).astype(jnp.uint32), (signed & 0xFFFF).astype(jnp.uint32)
    phase = signed.astype(jnp.uint32) * coarse + upper * fine + ((lower * fine) >> 16)
    return jax.lax.bitcast_convert_type(phase, jnp.int32).astype(jnp.float32) * (math.tau / 2**32)


@rotary_angles.defjvp
def _rotary_angles_jvp(primals, tangents):
    # Integer arithmetic has no derivative of its own; d(p w)/dw = p.
    positions, inverse_frequencies = primals
    slope = jnp.asarray(tangents[1], jnp.float32).reshape((1,) * positions.ndim + (-1,))
    return rotary_angles(positions, inverse_frequencies), positions.astype(jnp.float32)[
        ..., None
    ] * slope


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
        layout: which channels form pair i: "half" (i, i + R/2; GPT-NeoX, Llama) or "interleaved"
            (2i, 2i + 1; the paper, GPT-J).
        attention_factor: multiplies cos and sin (YaRN, LongRoPE); the scores get its square.

    Returns:
        [B, T, N, H] in the dtype of `x`; the arithmetic is float32.

    Raises:
        ValueError: if the layout is unknown or more channels would rotate than there are.

    Reference:
        Su et al., 2021, https://arxiv.org/abs/2104.09864
    """
    chex.assert_rank([x, positions], [4, 2])
    chex.assert_shape(positions, ({1, x.shape[0]}, x.shape[1]))
    rotary_dim = 2 * inverse_frequencies.shape[0]
    if rotary_dim > x.shape[-1]:
        raise ValueError(f"{rotary_dim} channels would rotate, but a head has {x.shape[-1]}")
    angles_BTF = rotary_angles(positions, inverse_frequencies)
    cos_BTNF = (jnp.cos(angles_BTF) * attention_factor)[:, :, None, :]
    sin_BTNF = (jnp.sin(angles_BTF) * attention_factor)[:, :, None, :]
    rotary, rest = x[..., :rotary_dim].astype(jnp.float32), x[..., rotary_dim:]
    if layout == "half":
        a_BTNF, b_BTNF = jnp.split(rotary, 2, axis=-1)
    elif layout == "interleaved":
        a_BTNF, b_BTNF = rotary[..., 0::2], rotary[..., 1::2]
    else:
        raise ValueError(f'layout = {layout!r}: must be "half" or "interleaved"')
    turned = (a_BTNF * cos_BTNF - b_BTNF * sin_BTNF, b_BTNF * cos_BTNF + a_BTNF * sin_BTNF)
    if layout == "half":
        rotary = jnp.concatenate(turned, axis=-1)
    else:
        rotary = jnp.stack(turned, axis=-1).reshape(rotary.shape)
    return jnp.concatenate([rotary.astype(x.dtype), rest], axis=-1)


def check_field(owner: object, field: str, valid: bool, expected: str) -> None:
    """Raises ConfigError naming the field, its value and what would be right, unless `valid`."""
    if not valid:
        value = getattr(owner, field)
        raise ConfigError(f"{type(owner).__name__}.{field} = {value!r}: must be {expected}")


@dataclass(frozen=True)
class Scaling:
    """How RoPE frequencies are stretched beyond the trained length; this base class keeps them."""

    def frequencies(
        self, theta: float, rotary_dim: int, length: jax.Array | int
    ) -> tuple[Frequencies, float]:
        """The frequencies to rotate with, a pure function of the fields and the arguments.

        Args:
            theta: the base of the unscaled frequencies.
            rotary_dim: R, the number of channels that rotate; even.
            length: L, the largest position of the batch + 1; may be traced.

        Returns:
            [R / 2] float32 radians per token, and the multiplier of cos and sin.
        """
        del length
        return inverse_frequencies(theta, rotary_dim), 1.0

    def validate_rotary_dim(self, rotary_dim: int) -> None:
        """Raises ConfigError if the scaling cannot serve this many rotating channels."""
        del rotary_dim


@dataclass(frozen=True)
class NoScaling(Scaling):
    """The frequencies as they were trained."""


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Position interpolation: every pair turns slower, `w' = w / s`.

    Reference:
        Chen et al., 2023, https://arxiv.org/abs/2306.15595
    """

    factor: float
    """s, new length / trained length."""

    def __post_init__(self):
        check_field(self, "factor", self.factor > 0, "positive")

    def frequencies(self, theta, rotary_dim, length):
        del length
        return inverse_frequencies(theta, rotary_dim) / np.float32(self.factor), 1.0


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    r"""Stretches the base as the batch outgrows the trained length, sparing the fast pairs.

    `theta' = theta (s L / L0 - (s - 1))^(R / (R - 2))` for L > L0, that is
    `w_i' = w_i (s L / L0 - (s - 1))^(-2i / (R - 2))`; needs R > 2.

    Reference:
        Peng et al., 2023 (section B.2), https://arxiv.org/abs/2309.00071
    """

    factor: float
    """s, how fast the base grows with the length."""
    original_max_length: int
    """L0, the trained length in tokens; shorter batches are not scaled."""

    def __post_init__(self):
        check_field(self, "factor", self.factor >= 1, "at least 1")
        check_field(self, "original_max_length", self.original_max_length >= 1, "at least 1")

    def frequencies(self, theta, rotary_dim, length):
        unscaled = inverse_frequencies(theta, rotary_dim)
        overflow = jnp.maximum(length / jnp.float32(self.original_max_length), 1.0)
        # s x - (s - 1), written so that it is exactly one up to the trained length.
        stretch = 1 + self.factor * (overflow - 1)
        exponents = np.linspace(0.0, -1.0, rotary_dim // 2, dtype=np.float32)
        return unscaled * jnp.expand_dims(stretch, 0) ** exponents, 1.0

    def validate_rotary_dim(self, rotary_dim):
        if rotary_dim <= 2:
            raise ConfigError(f"DynamicNTK needs more than 2 rotating channels, not {rotary_dim}")


@dataclass(frozen=True)
class YaRN(Scaling):
    r"""Divides the slow pairs by s and keeps the fast ones, with a linear ramp in between.

    `w_i' = (1 - r_i) w_i + r_i w_i / s`, `r_i = clip((i - low) / (high - low), 0, 1)`; low and high
    are the (real) indices of the pairs that turn `beta_fast` and `beta_slow` times in L0 tokens.
    cos and sin are multiplied by `0.1 ln(s) + 1`, or where both scales are given by
    `(0.1 mscale ln(s) + 1) / (0.1 mscale_all_dim ln(s) + 1)`.

    Reference:
        Peng et al., 2023, https://arxiv.org/abs/2309.00071
    """

    factor: float
    """s, new length / trained length."""
    original_max_length: int
    """L0, the trained length in tokens."""
    beta_fast: float = 32.0
    """Pairs that turn more often than this in the trained length are kept."""
    beta_slow: float = 1.0
    """Pairs that turn less often than this are divided by the factor."""
    truncate: bool = True
    """Round the ends of the ramp outwards to whole pairs."""
    mscale: float | None = None
    """Weight of ln(s) in the numerator of the multiplier (DeepSeek); used with mscale_all_dim."""
    mscale_all_dim: float | None = None
    """Weight of ln(s) in the denominator of the multiplier (DeepSeek); used with mscale."""
    attention_factor: float | None = None
    """Multiplier of cos and sin; computed from the factor when absent."""

    def __post_init__(self):
        check_field(self, "factor", self.factor > 0, "positive")
        check_field(self, "original_max_length", self.original_max_length >= 1, "at least 1")
        check_field(self, "beta_slow", self.beta_slow > 0, "positive")
        ordered = self.beta_fast >= self.beta_slow
        check_field(self, "beta_fast", ordered, f"at least beta_slow = {self.beta_slow}")

    def frequencies(self, theta, rotary_dim, length):
        del length
        num_pairs = rotary_dim // 2

        def pair_that_turns(times: float) -> float:
            span = math.log(self.original_max_length / (times * math.tau))
            return num_pairs * span / math.log(theta)

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # R - 1, although there are R / 2 pairs: the limit that the checkpoints were trained with.
        low, high = max(low, 0), min(high, rotary_dim - 1)
        ramp = np.clip((np.arange(num_pairs) - low) / ((high - low) or 0.001), 0, 1)
        unscaled = inverse_frequencies(theta, rotary_dim)
        scaled = (unscaled * (1 - ramp + ramp / self.factor)).astype(np.float32)
        return scaled, self._multiplier()

    def _multiplier(self) -> float:
        def temperature(weight: float) -> float:
            return 0.1 * weight * math.log(max(self.factor, 1.0)) + 1.0

        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return temperature(self.mscale) / temperature(self.mscale_all_dim)
        return temperature(1.0)


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    r"""Divides the pairs that turn rarely in the trained length by s, blending in the middle.

    `w_i' = g_i w_i + (1 - g_i) w_i / s`, `g_i = clip((t_i - low) / (high - low), 0, 1)`, where
    `t_i = L0 w_i / (2 pi)` is the number of turns in L0 tokens.

    Reference:
        Llama Team, 2024, https://arxiv.org/abs/2407.21783
    """

    factor: float
    """s, the divisor of the slow pairs."""
    low_frequency_factor: float
    """low: pairs with fewer turns are divided."""
    high_frequency_factor: float
    """high: pairs with more turns are kept."""
    original_max_length: int
    """L0, the trained length in tokens."""

    def __post_init__(self):
        check_field(self, "factor", self.factor > 0, "positive")
        check_field(self, "original_max_length", self.original_max_length >= 1, "at least 1")
        low = self.low_frequency_factor
        above = self.high_frequency_factor > low
        check_field(self, "high_frequency_factor", above, f"above low_frequency_factor = {low}")

    def frequencies(self, theta, rotary_dim, length):
        del length
        unscaled = inverse_frequencies(theta, rotary_dim)
        turns = self.original_max_length * unscaled.astype(np.float64) / math.tau
        span = self.high_frequency_factor - self.low_frequency_factor
        keep = np.clip((turns - self.low_frequency_factor) / span, 0, 1)
        return (unscaled * (keep + (1 - keep) / self.factor)).astype(np.float32), 1.0


@dataclass(frozen=True)
class LongRoPE(Scaling):
    r"""Divides each pair by its own searched factor: one set up to the trained length, one beyond.

    `w_i' = w_i / short_i` if L <= L0 else `w_i / long_i`; cos and sin are multiplied by
    `sqrt(1 + ln(s) / ln(L0))`, for short sequences too.

    Reference:
        Ding et al., 2024, https://arxiv.org/abs/2402.13753
    """

    short_factors: tuple[float, ...]
    """Divisors up to the trained length, one per pair of rotating channels."""
    long_factors: tuple[float, ...]
    """Divisors beyond the trained length, one per pair of rotating channels."""
    original_max_length: int
    """L0, the trained length in tokens."""
    factor: float
    """s, new length / trained length."""
    attention_factor: float | None = None
    """Multiplier of cos and sin; computed from the factor when absent."""

    def __post_init__(self):
        for field in ("short_factors", "long_factors"):
            # A list (from JSON) would not hash.
            object.__setattr__(self, field, tuple(getattr(self, field)))
            check_field(self, field, all(f > 0 for f in getattr(self, field)), "positive numbers")
        count = len(self.short_factors)
        check_field(self, "long_factors", len(self.long_factors) == count, f"{count} numbers")
        check_field(self, "original_max_length", self.original_max_length >= 2, "at least 2")
        check_field(self, "factor", self.factor > 0, "positive")

    def frequencies(self, theta, rotary_dim, length):
        unscaled = inverse_frequencies(theta, rotary_dim)
        short = unscaled / np.asarray(self.short_factors, np.float32)
        long = unscaled / np.asarray(self.long_factors, np.float32)
        scaled = jnp.where(jnp.asarray(length) > self.original_max_length, long, short)
        if self.attention_factor is not None:
            return scaled, self.attention_factor
        ratio = math.log(max(self.factor, 1.0)) / math.log(self.original_max_length)
        return scaled, math.sqrt(1 + ratio)

    def validate_rotary_dim(self, rotary_dim):
        right = len(self.short_factors) == rotary_dim // 2
        check_field(
            self, "short_factors", right, f"{rotary_dim // 2} numbers, one per rotating pair"
        )
