"""The decode step: (parameters, cache, token) -> (logits, cache)."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxformer.distributed.sharding import on_rows, spec
from jaxformer.functional.assertions import assert_axes
from jaxformer.functional.placement import place, spec_of
from jaxformer.generation.decode.processors import History
from jaxformer.models import Decoder, EncoderDecoder
from jaxformer.models.cache import Cache

Generative = Decoder | EncoderDecoder
"""The families that generate."""


def next_logits(
    model: Generative, history: History, cache: Cache, active: jax.Array, lacking: int = 1
) -> tuple[jax.Array, Cache]:
    """Reads the tokens that the cache lacks: the last of each row, and perhaps some before it.

    Where positions depend on the length and the token has changed what went before (RoPE stretched
    beyond its trained length), all tokens of all rows are read again.

    Args:
        model: With its weights.
        history: The tokens; `[B, S]`.
        cache: Of all tokens but the last ones.
        active: bool `[B]`: the rows whose tokens count; the others stay as they are.
        lacking: How many tokens of an active row the cache may lack, at most.

    Returns:
        Float32 logits `[B, V]`, the same on every device of a mesh, and the cache of all tokens.
    """
    tokens, lengths = history.tokens, history.lengths

    def read_last(cache):
        return _read(model, *_lacked(history, cache, active, lacking), cache, lengths)

    def read_all(cache):
        return _read(model, tokens, lengths, cache.emptied(), lengths)

    changed = model.reader.changes_at(lengths)
    if changed is None:
        hidden, cache = read_last(cache)
    else:
        hidden, cache = jax.lax.cond(jnp.any(changed & active), read_all, read_last, cache)
    # Whoever chooses sees the whole vocabulary of every row.
    return place(model.logits(hidden)[:, 0], spec(None, None)), cache


def logits_of_lacking(
    model: Generative, history: History, cache: Cache, active: jax.Array, lacking: int
) -> tuple[jax.Array, Cache]:
    """Reads the tokens that the cache lacks, and says what comes after each.

    Args:
        model: With its weights; its positions do not change with the length.
        history: The tokens; `[B, S]`.
        cache: Of all tokens but the last ones.
        active: bool `[B]`: the rows whose tokens count; the others stay as they are.
        lacking: N, how many tokens of an active row the cache may lack, at most.

    Returns:
        Float32 logits `[B, n, V]`, the first after the first token that was lacking, the same on
        every device of a mesh; and the cache of all tokens.
    """
    tokens, count = _lacked(history, cache, active, lacking)
    hidden, cache = extended(model, tokens, count, cache, history.lengths)
    return place(model.logits(hidden), spec(None, None, None)), cache


def extended(
    model: Generative, tokens: jax.Array, count: jax.Array, cache: Cache, lengths: jax.Array
) -> tuple[jax.Array, Cache]:
    """Reads tokens.

    Args:
        model: With its weights.
        tokens: int `[B, T]`.
        count: int `[B]`: how many of them are real, the first ones.
        cache: Of the tokens before them.
        lengths: int `[B]`: of the rows.

    Returns:
        Their states `[B, T, D]`, and the cache after them.
    """
    assert_axes(tokens=(tokens, "B T"), count=(count, "B"), lengths=(lengths, "B"))
    tokens, count, lengths = on_rows((tokens, count, lengths))
    hidden, after = model.extend(tokens, cache, count=count, lengths=lengths)
    # A loop's types stay as they are.
    return hidden, replace(after, lengths=place(after.lengths, spec_of(cache.lengths)))


def _lacked(history, cache, active, most):
    """The tokens `[B, most]` that the cache lacks, and how many there are in each row."""
    start = place(cache.lengths, spec(None))
    places = start[:, None] + jnp.arange(most)[None, :]
    tokens = jnp.take_along_axis(history.tokens, places, axis=1, mode="clip")
    return tokens, jnp.where(active, history.lengths - start, 0)


def _read(model, tokens, count, cache, lengths):
    """The state `[B, 1, D]` of the last of `count` tokens, and the cache after them."""
    hidden, cache = extended(model, tokens, count, cache, lengths)
    if tokens.shape[1] > 1:
        last = on_rows(jnp.maximum(count - 1, 0))[:, None, None]
        hidden = jnp.take_along_axis(hidden, last, axis=1)
    return hidden, cache
