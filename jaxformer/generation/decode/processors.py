"""Between the logits and the choice: what the history and the settings make of the logits.

A processor is a function of the logits and the history. These are frozen dataclasses, so a tuple
of them can be a static argument of a compiled loop; the mathematics is in `functional`. In a mesh,
rows may be sharded; the vocabulary is whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.checks import PROBABILITY, at_least, check_fields
from jaxformer.functional.assertions import assert_axes
from jaxformer.functional.sampling.next_token import (
    ban_tokens,
    force_token,
    min_p_filter,
    scale_temperature,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from jaxformer.functional.sampling.penalties import (
    ban_sequences,
    frequency_penalty,
    no_repeat_ngram,
    presence_penalty,
    repetition_penalty,
    token_counts,
)
from jaxformer.generation.checks import NUMBER, POSITIVE, SEQUENCES, TOKEN, TOKENS


class History(NamedTuple):
    """What has been written so far; for an encoder-decoder, on the decoder's side."""

    tokens: jax.Array
    """[B, S] integers: the prompt, then what was generated, from the left; unspecified beyond."""
    lengths: jax.Array
    """[B] integers: how many tokens there are."""
    prompt_lengths: jax.Array
    """[B] integers: how many of them are the prompt."""
    limits: jax.Array
    """[B] integers: the length at which generation stops at the latest."""


Processor = Callable[[jax.Array, History], jax.Array]
"""From logits [B, V] float32 and the history to logits [B, V]."""


def process(processors: Sequence[Processor], logits: jax.Array, history: History) -> jax.Array:
    """Applies processors one after the other.

    Args:
        processors: In their order.
        logits: [B, V] float32.
        history: What has been written so far.

    Returns:
        [B, V] float32.

    Raises:
        AssertionError: An array, or what a processor returns, has other axes or another dtype;
            names it.
    """
    sizes = assert_axes(
        logits=(logits, "B V"),
        tokens=(history.tokens, "B S"),
        lengths=(history.lengths, "B"),
        prompt_lengths=(history.prompt_lengths, "B"),
        limits=(history.limits, "B"),
    )
    for processor in processors:
        logits = processor(logits, history)
        name = f"what {getattr(processor, '__name__', processor)} returns"
        assert_axes(**{name: (logits, f"{sizes['B']} {sizes['V']}")})
        if logits.dtype != jnp.float32:
            raise AssertionError(f"{name} has dtype {logits.dtype}: must be float32")
    return logits


# From the history -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepetitionPenalty:
    """Tokens of the prompt and of what was generated become less probable, by a factor."""

    penalty: float
    """Above 1 discourages repetition, below 1 encourages it."""

    def __post_init__(self):
        check_fields(self, penalty=POSITIVE)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        counts = _counts(history, jnp.zeros_like(history.lengths), logits.shape[1])
        return repetition_penalty(logits, counts > 0, self.penalty)


@dataclass(frozen=True)
class PresencePenalty:
    """Generated tokens become less probable, however often they were."""

    penalty: float
    """Subtracted from their logits; negative encourages repetition."""

    def __post_init__(self):
        check_fields(self, penalty=NUMBER)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        counts = _counts(history, history.prompt_lengths, logits.shape[1])
        return presence_penalty(logits, counts > 0, self.penalty)


@dataclass(frozen=True)
class FrequencyPenalty:
    """Generated tokens become less probable, each time more."""

    penalty: float
    """Subtracted from their logits each time; negative encourages repetition."""

    def __post_init__(self):
        check_fields(self, penalty=NUMBER)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        counts = _counts(history, history.prompt_lengths, logits.shape[1])
        return frequency_penalty(logits, counts, self.penalty)


@dataclass(frozen=True)
class NoRepeatNgram:
    """No n-gram occurs twice, prompt included."""

    ngram_size: int
    """n."""

    def __post_init__(self):
        check_fields(self, ngram_size=at_least(1))

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return no_repeat_ngram(logits, history.tokens, history.lengths, self.ngram_size)


@dataclass(frozen=True)
class BannedTokens:
    """Tokens that are never chosen."""

    tokens: tuple[int, ...]
    """Their numbers."""

    def __post_init__(self):
        check_fields(self, tokens=TOKENS)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return ban_tokens(logits, self.tokens)


@dataclass(frozen=True)
class BannedSequences:
    """Tokens that never follow each other; a sequence of one is never chosen."""

    sequences: tuple[tuple[int, ...], ...]
    """Their numbers."""

    def __post_init__(self):
        check_fields(self, sequences=SEQUENCES)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return ban_sequences(logits, history.tokens, history.lengths, self.sequences)


@dataclass(frozen=True)
class MinNewTokens:
    """No end before so many tokens have been generated."""

    count: int
    """Tokens, the end not among them."""
    end_tokens: tuple[int, ...]
    """The tokens that end a text."""

    def __post_init__(self):
        check_fields(self, count=at_least(0), end_tokens=TOKENS)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        too_early = history.lengths - history.prompt_lengths < self.count
        return jnp.where(too_early[:, None], ban_tokens(logits, self.end_tokens), logits)


@dataclass(frozen=True)
class ForcedFirst:
    """The first token generated, such as the language that mBART is to write."""

    token: int
    """Its number."""

    def __post_init__(self):
        check_fields(self, token=TOKEN)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        first = history.lengths == history.prompt_lengths
        return jnp.where(first[:, None], force_token(logits, self.token), logits)


@dataclass(frozen=True)
class ForcedLast:
    """The token at the last place there is, such as the end of BART's summaries."""

    token: int
    """Its number."""

    def __post_init__(self):
        check_fields(self, token=TOKEN)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        last = history.lengths == history.limits - 1
        return jnp.where(last[:, None], force_token(logits, self.token), logits)


def _counts(history: History, starts: jax.Array, vocab_size: int) -> jax.Array:
    """How often each token occurs from `starts [B]` on, [B, V] int32."""
    places = jnp.arange(history.tokens.shape[1])[None, :]
    counted = (starts[:, None] <= places) & (places < history.lengths[:, None])
    return token_counts(history.tokens, counted, vocab_size)


# From the logits alone --------------------------------------------------------------------------


@dataclass(frozen=True)
class Temperature:
    """Flattens (above 1) or sharpens (below 1) the distribution."""

    temperature: float
    """What the logits are divided by."""

    def __post_init__(self):
        check_fields(self, temperature=POSITIVE)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return scale_temperature(logits, self.temperature)


@dataclass(frozen=True)
class TopK:
    """Keeps the most probable tokens."""

    top_k: int
    """How many."""

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
    """Keeps the tokens that are not much less probable than the most probable one."""

    min_p: float
    """The smallest ratio of their probabilities."""

    def __post_init__(self):
        check_fields(self, min_p=PROBABILITY)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return min_p_filter(logits, self.min_p)


@dataclass(frozen=True)
class Typical:
    """Keeps the tokens of the most typical surprise that together reach a probability."""

    typical_p: float
    """The probability."""

    def __post_init__(self):
        check_fields(self, typical_p=PROBABILITY)

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return typical_filter(logits, self.typical_p)
