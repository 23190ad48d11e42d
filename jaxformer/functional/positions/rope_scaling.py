"""Published methods to extend RoPE beyond the trained length, each a small frozen object."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, at_least, check_field, check_fields, optional
from jaxformer.errors import ConfigError
from jaxformer.functional.positions.rope import Scaling, inverse_frequencies


@dataclass(frozen=True)
class GivenFrequencies(Scaling):
    """Frequencies stored in a checkpoint: those of theta, rounded as in training (ESM-2)."""

    values: tuple[float, ...]
    """Radians per token of each channel pair."""

    def __post_init__(self):
        super().__post_init__()
        finite = bool(self.values) and all(0 <= x < math.inf for x in self.values)
        check_field(self, "values", finite, "finite, non-negative numbers, one per channel pair")

    def frequencies(self, theta, rotary_dim, length):
        del theta, rotary_dim, length
        return np.asarray(self.values, np.float32), 1.0

    def validate_rotary_dim(self, rotary_dim):
        same = len(self.values) == rotary_dim // 2
        check_field(self, "values", same, f"{rotary_dim // 2} numbers, one per channel pair")


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """Position interpolation: slows down every pair, `w' = w / s`.

    References:
        Chen et al., 2023, https://arxiv.org/abs/2306.15595
    """

    factor: float
    """s, new length / trained length."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, factor=POSITIVE)

    def frequencies(self, theta, rotary_dim, length):
        del length
        return inverse_frequencies(theta, rotary_dim) / np.float32(self.factor), 1.0


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    r"""Increases the base when the batch exceeds the trained length, preserving the fast pairs.

    `theta' = theta (s L / L0 - (s - 1))^(R / (R - 2))` for L > L0, that is
    `w_i' = w_i (s L / L0 - (s - 1))^(-2i / (R - 2))`; needs R > 2.

    References:
        Peng et al., 2023 (section B.2), https://arxiv.org/abs/2309.00071
    """

    factor: float
    """s, how fast the base grows with the length."""
    original_max_length: int
    """L0, the trained length in tokens; shorter batches are not scaled."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "factor", 1 <= self.factor < math.inf, "at least 1, and finite")
        check_fields(self, original_max_length=at_least(1))

    def frequencies(self, theta, rotary_dim, length):
        unscaled = inverse_frequencies(theta, rotary_dim)
        overflow = jnp.maximum(length / jnp.float32(self.original_max_length), 1.0)
        # s x - (s - 1), written so that it is exactly one up to the trained length.
        stretch = 1 + self.factor * (overflow - 1)
        exponents = np.linspace(0.0, -1.0, rotary_dim // 2, dtype=np.float32)
        return unscaled * jnp.expand_dims(stretch, 0) ** exponents, 1.0

    def changes_at(self, lengths):
        return lengths > self.original_max_length

    def validate_rotary_dim(self, rotary_dim):
        if rotary_dim <= 2:
            raise ConfigError(f"DynamicNTK needs more than 2 rotating channels, not {rotary_dim}")


@dataclass(frozen=True)
class YaRN(Scaling):
    r"""Divides the slow pairs by s and keeps the fast ones, with a linear ramp between them.

    `w_i' = (1 - r_i) w_i + r_i w_i / s`, `r_i = clip((i - low) / (high - low), 0, 1)`; low and high
    are the (real) indices of the pairs that turn `beta_fast` and `beta_slow` times in L0 tokens.
    cos and sin are multiplied by `0.1 ln(s) + 1`, or if both scales are given, by `(0.1 mscale
    ln(s) + 1) / (0.1 mscale_all_dim ln(s) + 1)`.

    References:
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
    """Multiplier of cos and sin; None computes it from the factor."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            self,
            factor=POSITIVE,
            original_max_length=at_least(1),
            beta_slow=POSITIVE,
            attention_factor=optional(POSITIVE),
            mscale=optional(NOT_NEGATIVE),
            mscale_all_dim=optional(NOT_NEGATIVE),
        )
        ordered = self.beta_slow <= self.beta_fast < math.inf
        check_field(self, "beta_fast", ordered, f"finite, at least beta_slow = {self.beta_slow}")

    def frequencies(self, theta, rotary_dim, length):
        del length
        num_pairs = rotary_dim // 2

        def pair_that_turns(times: float) -> float:
            span = math.log(self.original_max_length / (times * math.tau))
            return num_pairs * span / math.log(theta)

        low = pair_that_turns(self.beta_fast)
        high = pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # R - 1 although there are only R / 2 pairs, as in the training of the checkpoints.
        low, high = max(low, 0), min(high, rotary_dim - 1)
        ramp = np.clip((np.arange(num_pairs) - low) / ((high - low) or 0.001), 0, 1)
        unscaled = inverse_frequencies(theta, rotary_dim)
        scaled = (unscaled * (1 - ramp + ramp / self.factor)).astype(np.float32)
        return scaled, self._multiplier()

    @property
    def logit_factor(self) -> float:
        """The square of `0.1 mscale_all_dim ln(s) + 1`; 1 without `mscale_all_dim`."""
        return self._temperature(self.mscale_all_dim or 0.0) ** 2

    def _multiplier(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, weight: float) -> float:
        return 0.1 * weight * math.log(max(self.factor, 1.0)) + 1.0


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    r"""Divides the pairs that turn rarely within the trained length by s, with a smooth transition.

    `w_i' = g_i w_i + (1 - g_i) w_i / s`, `g_i = clip((t_i - low) / (high - low), 0, 1)`, where
    `t_i = L0 w_i / (2 pi)` is the number of turns in L0 tokens.

    References:
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
        super().__post_init__()
        check_fields(
            self, factor=POSITIVE, original_max_length=at_least(1), low_frequency_factor=POSITIVE
        )
        low = self.low_frequency_factor
        above = low < self.high_frequency_factor < math.inf
        wanted = f"finite, above low_frequency_factor = {low}"
        check_field(self, "high_frequency_factor", above, wanted)

    def frequencies(self, theta, rotary_dim, length):
        del length
        unscaled = inverse_frequencies(theta, rotary_dim)
        turns = self.original_max_length * unscaled.astype(np.float64) / math.tau
        span = self.high_frequency_factor - self.low_frequency_factor
        keep = np.clip((turns - self.low_frequency_factor) / span, 0, 1)
        return (unscaled * (keep + (1 - keep) / self.factor)).astype(np.float32), 1.0


@dataclass(frozen=True)
class LongRoPE(Scaling):
    r"""Divides each pair by a searched factor, with one set up to the trained length and one
    beyond.

    `w_i' = w_i / short_i` if L <= L0 else `w_i / long_i`; cos and sin are multiplied by
    `sqrt(1 + ln(s) / ln(L0))`, for short sequences too.

    References:
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
    """Multiplier of cos and sin; None computes it from the factor."""

    def __post_init__(self):
        super().__post_init__()
        for field in ("short_factors", "long_factors"):
            positive = all(0 < factor < math.inf for factor in getattr(self, field))
            check_field(self, field, positive, "positive, finite numbers")
        count = len(self.short_factors)
        check_field(self, "long_factors", len(self.long_factors) == count, f"{count} numbers")
        check_fields(
            self,
            original_max_length=at_least(2),
            factor=POSITIVE,
            attention_factor=optional(POSITIVE),
        )

    def frequencies(self, theta, rotary_dim, length):
        unscaled = inverse_frequencies(theta, rotary_dim)
        short = unscaled / np.asarray(self.short_factors, np.float32)
        long = unscaled / np.asarray(self.long_factors, np.float32)
        scaled = jnp.where(jnp.asarray(length) > self.original_max_length, long, short)
        if self.attention_factor is not None:
            return scaled, self.attention_factor
        ratio = math.log(max(self.factor, 1.0)) / math.log(self.original_max_length)
        return scaled, math.sqrt(1 + ratio)

    def changes_at(self, lengths):
        return lengths == self.original_max_length + 1

    def validate_rotary_dim(self, rotary_dim):
        right = len(self.short_factors) == rotary_dim // 2
        check_field(
            self, "short_factors", right, f"{rotary_dim // 2} numbers, one per rotating pair"
        )
