"""Whisper's rules for timestamps among the tokens of a text."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.generation.config import TOKEN
from jaxformer.generation.decode.processors import History


@dataclass(frozen=True)
class Timestamps:
    """Allows timestamps only where they are valid, and requires one where one is probable.

    They come in pairs, the end of a segment and the start of the next, except before the end of
    the text; they do not decrease; a text begins with one; and if all of them together are more
    probable than any other token, the next token is one of them.

    References:
        Radford et al., 2022 (https://arxiv.org/abs/2212.04356), section 2.3, and
        `WhisperTimeStampLogitsProcessor` of transformers.
    """

    first: int
    """The timestamp 0.00; the ids above it are the later ones."""
    end_token: int
    """The token that ends a text; the ids below it are words."""
    latest_start: int | None = None
    """The number of the latest timestamp that a text may begin with; None: any."""

    def __post_init__(self):
        check_fields(self, first=TOKEN, end_token=TOKEN, latest_start=optional(at_least(0)))

    def __call__(self, logits: jax.Array, history: History) -> jax.Array:
        ids = jnp.arange(logits.shape[1])[None, :]
        times = ids >= self.first
        banned = ids == self.first - 1  # <|notimestamps|>
        count_B = history.lengths - history.prompt_lengths
        last_B = (count_B >= 1) & (_token(history, history.lengths - 1) >= self.first)
        before_B = (count_B < 2) | (_token(history, history.lengths - 2) >= self.first)
        banned |= (last_B & before_B)[:, None] & times
        banned |= (last_B & ~before_B)[:, None] & (ids < self.end_token)
        lowest_B = self._lowest(history, repeats=last_B & ~before_B)
        banned |= times & (ids < lowest_B[:, None])
        begins_B1 = (count_B == 0)[:, None]
        banned |= begins_B1 & ~times
        if self.latest_start is not None:
            banned |= begins_B1 & (ids > self.first + self.latest_start)
        logits = jnp.where(banned, -jnp.inf, logits)
        together_B = jax.nn.logsumexp(jnp.where(times, logits, -jnp.inf), axis=1)
        likeliest_B = jnp.max(jnp.where(times, -jnp.inf, logits), axis=1)
        return jnp.where((together_B > likeliest_B)[:, None] & ~times, -jnp.inf, logits)

    def _lowest(self, history: History, repeats: jax.Array) -> jax.Array:
        """Returns the lowest timestamp that may follow, int `[B]`: a repeated or a later one."""
        places_1S = jnp.arange(history.tokens.shape[1])[None, :]
        new_BS = places_1S >= history.prompt_lengths[:, None]
        new_BS &= places_1S < history.lengths[:, None]
        place_B = jnp.max(jnp.where(new_BS & (history.tokens >= self.first), places_1S, -1), axis=1)
        return jnp.where(place_B < 0, self.first, _token(history, place_B) + ~repeats)


def _token(history: History, place_B: jax.Array) -> jax.Array:
    """Returns the token of each row at its place, int `[B]`; at a negative place the first."""
    return jnp.take_along_axis(history.tokens, jnp.maximum(place_B, 0)[:, None], axis=1)[:, 0]
