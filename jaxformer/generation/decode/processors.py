"""Logits processors: penalties, constraints and filters applied before a token is chosen.

A processor maps the logits and the history to logits. Those here are frozen dataclasses around
functions of `functional.sampling`, so a tuple of them can be a static argument of a compiled loop.
The values of their fields are checked by `GenerationConfig`. On a mesh the rows may be sharded, but
not the vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.sampling.next_token import ban_tokens, force_token
from jaxformer.functional.sampling.penalties import (
    frequency_penalty,
    no_repeat_ngram,
    presence_penalty,
    repetition_penalty,
    token_counts,
)


class History(NamedTuple):
    """The tokens so far; for an encoder-decoder, those of the decoder."""

    tokens: jax.Array
    """int `[B, S]`: the prompt, then the generated tokens; unspecified beyond the length."""
    lengths: jax.Array
    """int `[B]`: the number of tokens."""
    prompt_lengths: jax.Array
    """int `[B]`: the number of prompt tokens."""
    limits: jax.Array
    """int `[B]`: the maximum length."""
    source: jax.Array | None = None
    """int `[B, R]`: the tokens that the encoder has read, -1 at padding; None: no encoder."""

    def read(self) -> jax.Array:
        """Returns the source, or the prompt without one, int `[B, R]`; -1 beyond its end."""
        if self.source is not None:
            return self.source
        positions = jnp.arange(self.tokens.shape[1])[None, :]
        return jnp.where(positions < self.prompt_lengths[:, None], self.tokens, -1)


Processor = Callable[[jax.Array, History], jax.Array]
"""Maps float32 logits `[B, V]` and the history to logits `[B, V]`."""


def process(processors: Sequence[Processor], logits: jax.Array, history: History) -> jax.Array:
    """Applies processors one after another to float32 logits `[B, V]`.

    Raises:
        AssertionError: An array, or the result of a processor, has the wrong axes or dtype.
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


@dataclass(frozen=True)
class OnLogits:
    """Applies a function of only the logits, such as a filter of sampling."""

    function: Callable[..., jax.Array]
    """Maps logits `[B, V]` and the arguments to logits `[B, V]`, such as `top_k_filter`."""
    arguments: tuple[Any, ...] = ()
    """Its other arguments, such as k."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return self.function(logits, *self.arguments)


@dataclass(frozen=True)
class OnTokens:
    """Applies a function to the logits and the tokens so far, such as `no_repeat_ngram`."""

    function: Callable[..., jax.Array]
    """Maps logits `[B, V]`, tokens `[B, S]`, lengths `[B]` and the arguments to logits."""
    arguments: tuple[Any, ...]
    """Its other arguments."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        return self.function(logits, history.tokens, history.lengths, *self.arguments)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Makes tokens of the prompt and generated tokens less probable, by a factor."""

    penalty: float
    """Above 1 discourages repetition, below 1 encourages it."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        counts = _counts(history, jnp.zeros_like(history.lengths), logits.shape[1])
        return repetition_penalty(logits, counts > 0, self.penalty)


@dataclass(frozen=True)
class PresencePenalty:
    """Makes generated tokens less probable, regardless of their number."""

    penalty: float
    """Subtracted from their logits; negative encourages repetition."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        counts = _counts(history, history.prompt_lengths, logits.shape[1])
        return presence_penalty(logits, counts > 0, self.penalty)


@dataclass(frozen=True)
class FrequencyPenalty:
    """Makes generated tokens less probable, in proportion to their number."""

    penalty: float
    """Subtracted from their logits for each occurrence; negative encourages repetition."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        counts = _counts(history, history.prompt_lengths, logits.shape[1])
        return frequency_penalty(logits, counts, self.penalty)


@dataclass(frozen=True)
class SourcePenalty:
    """Makes tokens of the source more probable, by a factor."""

    penalty: float
    """Above 1 favours tokens of the source."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        read = history.read()
        counts = token_counts(read, read >= 0, logits.shape[1])
        return repetition_penalty(logits, counts > 0, 1 / self.penalty)


@dataclass(frozen=True)
class NoSourceNgram:
    """Allows no n-gram of the source."""

    ngram_size: int
    """n."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        tokens, lengths = history.tokens, history.lengths
        return no_repeat_ngram(logits, tokens, lengths, self.ngram_size, history.read())


@dataclass(frozen=True)
class BannedAtBegin:
    """Excludes tokens as the first new one that is not forced."""

    tokens: tuple[int, ...]
    """The token ids."""
    forced: bool
    """Whether a text that begins with one token has a forced second one."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        skipped = self.forced & (history.prompt_lengths == 1)
        first = history.lengths - history.prompt_lengths == skipped
        return jnp.where(first[:, None], ban_tokens(logits, self.tokens), logits)


@dataclass(frozen=True)
class EndsLater:
    r"""Makes end tokens more probable with each token beyond a length.

    .. math:: x'_v = x_v + |x_v| (f^{n - s} - 1)
    """

    start: int
    """s, the number of new tokens beyond which it begins."""
    factor: float
    """f, above 1."""
    end_tokens: tuple[int, ...]
    """The tokens that end a text."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        beyond = history.lengths - history.prompt_lengths - self.start
        with np.errstate(over="ignore"):
            powers = np.float64(self.factor) ** np.arange(history.tokens.shape[1] + 1) - 1
            powers = jnp.asarray(powers.astype(np.float32))
        growth = powers.at[jnp.maximum(beyond, 0)].get(out_sharding=jax.typeof(beyond).sharding)
        grows = jnp.isin(jnp.arange(logits.shape[1]), jnp.array(self.end_tokens))[None, :]
        sizes = jnp.where(grows & jnp.isfinite(logits), jnp.abs(logits), 0)
        return logits + sizes * growth[:, None]


@dataclass(frozen=True)
class MinNewTokens:
    """Excludes end tokens until enough tokens have been generated."""

    count: int
    """The minimum number of tokens before the end token."""
    end_tokens: tuple[int, ...]
    """The tokens that end a text."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        too_early = history.lengths - history.prompt_lengths < self.count
        return jnp.where(too_early[:, None], ban_tokens(logits, self.end_tokens), logits)


@dataclass(frozen=True)
class ForcedFirst:
    """Forces the first token, such as the target language of mBART."""

    token: int
    """The token id."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        first = history.lengths == history.prompt_lengths
        return jnp.where(first[:, None], force_token(logits, self.token), logits)


@dataclass(frozen=True)
class ForcedLast:
    """Forces the token at the maximum length, such as the end token of BART's summaries."""

    token: int | tuple[int, ...]
    """The token id, or those of several, which become equally probable."""

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        last = history.lengths == history.limits - 1
        tokens = self.token if isinstance(self.token, tuple) else (self.token,)
        forced = functools.reduce(jnp.maximum, (force_token(logits, token) for token in tokens))
        return jnp.where(last[:, None], forced, logits)


def _counts(history: History, starts: jax.Array, vocab_size: int) -> jax.Array:
    """How often each token occurs from `starts` `[B]` on, int32 `[B, V]`."""
    positions = jnp.arange(history.tokens.shape[1])[None, :]
    counted = (starts[:, None] <= positions) & (positions < history.lengths[:, None])
    return token_counts(history.tokens, counted, vocab_size)
