"""The decode step: (parameters, cache, token) -> (logits, cache)."""

import jax
import jax.numpy as jnp

from jaxformer.functional.placement import place
from jaxformer.generation.processors import History
from jaxformer.models import Decoder, EncoderDecoder
from jaxformer.models.cache import Cache
from jaxformer.sharding import spec

Generative = Decoder | EncoderDecoder
"""The families that generate."""


def next_logits(
    model: Generative, history: History, cache: Cache, active: jax.Array
) -> tuple[jax.Array, Cache]:
    """Reads the last token of each row.

    Where positions depend on the length and the token has changed what went before (RoPE stretched
    beyond its trained length), all tokens of all rows are read again.

    Args:
      model: with its weights.
      history: the tokens; `[B, S]`.
      cache: of all tokens but the last.
      active: bool `[B]`: the rows whose token counts; the others stay as they are.

    Returns:
      Float32 logits `[B, V]`, the same on every device of a mesh, and the cache of all tokens.
    """
    tokens, lengths = history.tokens, history.lengths

    def read_last(cache):
        last = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)
        return _read(model, last, cache, active.astype(jnp.int32), lengths)

    def read_all(cache):
        fresh = cache.emptied()
        return _read(model, tokens, fresh, lengths, lengths)

    changed = model.reader.changes_at(lengths)
    if changed is None:
        hidden, cache = read_last(cache)
    else:
        hidden, cache = jax.lax.cond(jnp.any(changed & active), read_all, read_last, cache)
    # Whoever chooses sees the whole vocabulary of every row.
    return place(model.logits(hidden)[:, 0], spec(None, None)), cache


def _read(model, tokens, cache, count, lengths):
    """The state `[B, 1, D]` of the last of `count` tokens, and the cache after them."""
    tokens, count, lengths = (
        place(x, spec("batch", *[None] * (x.ndim - 1))) for x in (tokens, count, lengths)
    )
    hidden, cache = model.extend(tokens, cache, count=count, lengths=lengths)
    if tokens.shape[1] > 1:
        last = jnp.maximum(count - 1, 0)[:, None, None]
        hidden = jnp.take_along_axis(hidden, last, axis=1)
    return hidden, cache
