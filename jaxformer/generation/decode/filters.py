"""Logits processors that look at the logits alone: the filters of sampling, and what cleans up."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.checks import PROBABILITY, at_least, check_fields
from jaxformer.functional.sampling.next_token import (
    epsilon_filter,
    eta_filter,
    min_p_filter,
    scale_temperature,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from jaxformer.generation.decode.processors import POSITIVE, History


@dataclass(frozen=True)
class FiniteLogits:
    """Replaces logits that are not finite: NaN by 0, infinities by the largest numbers."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return jnp.nan_to_num(logits)


@dataclass(frozen=True)
class Renormalize:
    """Replaces logits by log-probabilities."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return jax.nn.log_softmax(logits)


@dataclass(frozen=True)
class Temperature:
    """Flattens (above 1) or sharpens (below 1) the distribution."""

    temperature: float
    """The divisor of the logits."""

    def __post_init__(self):
        check_fields(self, temperature=POSITIVE)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return scale_temperature(logits, self.temperature)


@dataclass(frozen=True)
class TopK:
    """Keeps the most probable tokens."""

    top_k: int
    """The number of tokens to keep."""

    def __post_init__(self):
        check_fields(self, top_k=at_least(1))

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return top_k_filter(logits, self.top_k)


@dataclass(frozen=True)
class TopP:
    """Keeps the most probable tokens that together reach a probability."""

    top_p: float
    """The probability."""

    def __post_init__(self):
        check_fields(self, top_p=PROBABILITY)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return top_p_filter(logits, self.top_p)


@dataclass(frozen=True)
class MinP:
    """Keeps the tokens whose probability is close enough to that of the most probable one."""

    min_p: float
    """The minimum ratio of the two probabilities."""

    def __post_init__(self):
        check_fields(self, min_p=PROBABILITY)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return min_p_filter(logits, self.min_p)


@dataclass(frozen=True)
class Typical:
    """Keeps the most typical tokens that together reach a probability."""

    typical_p: float
    """The probability."""

    def __post_init__(self):
        check_fields(self, typical_p=PROBABILITY)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return typical_filter(logits, self.typical_p)


@dataclass(frozen=True)
class EpsilonCutoff:
    """Keeps the tokens whose probability is large enough."""

    epsilon: float
    """The minimum probability."""

    def __post_init__(self):
        check_fields(self, epsilon=PROBABILITY)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return epsilon_filter(logits, self.epsilon)


@dataclass(frozen=True)
class EtaCutoff:
    """Keeps the tokens whose probability is large enough for the entropy."""

    epsilon: float
    """The minimum probability where the entropy is low."""

    def __post_init__(self):
        check_fields(self, epsilon=PROBABILITY)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return eta_filter(logits, self.epsilon)
