"""Beam search on the device, in one compiled loop."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.loop import decode_step, is_end
from jaxformer.generation.decode.processors import History, Processor, process
from jaxformer.models.decoder import GenerativeModel
from jaxformer.nn.cache import Cache


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("length_penalty",),
    meta_fields=("processors", "end_tokens", "num_beams", "early_stopping"),
)
@dataclass(frozen=True)
class BeamSearch:
    """The options of beam search. One program serves all length penalties."""

    processors: tuple[Processor, ...]
    """Applied to the log-probabilities before hypotheses are compared."""
    end_tokens: tuple[int, ...]
    """The tokens that complete a hypothesis."""
    num_beams: int
    """The number of beams of a row (n)."""
    length_penalty: float | jax.Array
    """Exponent of the length by which the log-probability is divided."""
    early_stopping: bool | Literal["never"]
    """When a row is finished: as soon as n hypotheses are complete (True), or as soon as the best
    beam cannot beat them, if it ended at its current length (False) or at any length ("never")."""

    @classmethod
    def of(cls, config: GenerationConfig) -> "BeamSearch":
        """The beam search of these options."""
        return cls(
            config.processors(),
            config.end_tokens,
            config.num_beams,
            config.length_penalty,
            config.early_stopping,
        )

    def score(self, totals: jax.Array, lengths: jax.Array) -> jax.Array:
        """The scores `[B, n]` of complete hypotheses.

        Args:
            totals: float32 `[B, n]`: the sums of their tokens' log-probabilities.
            lengths: int `[B]`: their numbers of tokens, the end token included.
        """
        return totals / (lengths[:, None].astype(jnp.float32) ** self.length_penalty)


class Hypotheses(NamedTuple):
    """Complete hypotheses, n for each of B rows, best first."""

    tokens: jax.Array
    """int32 `[B, n, S]`, 0 beyond the length."""
    lengths: jax.Array
    """int32 `[B, n]`."""
    scores: jax.Array
    """float32 `[B, n]`: log-probability / length^length_penalty; -inf if there are fewer."""


class _State(NamedTuple):
    """The search of B rows with n beams each, which have one length and follow one another."""

    history: History
    """The beams, `[B n, S]`, the most probable of a row first."""
    cache: Cache
    """The model's cache of all their tokens except the last."""
    totals: jax.Array
    """float32 `[B, n]`: their summed log-probabilities; -inf for unused beams."""
    complete: Hypotheses
    """The best complete hypotheses."""
    active: jax.Array
    """bool `[B]`: the rows that are not finished."""


class _Continuations(NamedTuple):
    """The most probable continuations of a row by one token, best first."""

    totals: jax.Array
    """float32 `[B, k]`: summed log-probabilities."""
    parents: jax.Array
    """int32 `[B, k]`: the beams that they continue."""
    tokens: jax.Array
    """int32 `[B, k]`: the tokens that they add."""
    end: jax.Array
    """bool `[B, k]`: whether the hypothesis is complete."""


def beam_search(
    model: GenerativeModel, search: BeamSearch, history: History, cache: Cache
) -> Hypotheses:
    r"""Searches for the most probable continuations of B prompts.

    Each step continues the beams of a row by every token and takes the `max(2, 1 + ends) n` most
    probable continuations. The n most probable of the incomplete ones are the beams of the next
    step. Complete ones among the first n join the n best hypotheses by their scores

    .. math:: s(y) = \frac{1}{|y|^\alpha} \sum_t \log p(y_t | y_{<t})

    where |y| counts the new tokens. A hypothesis of the maximum length is complete. The rules are
    those of transformers, except that each row finishes independently, and that a beam that cannot
    be continued is discarded.

    The prompts have room for the longest text, and all their tokens except the last are in the
    cache.

    References:
        Graves, Sequence transduction with recurrent neural networks (arXiv:1211.3711). Wu et al.,
        Google's neural machine translation system (arXiv:1609.08144), for the lengths.
    """
    state = _init_state(search, history, cache)
    step = partial(_search_step, model, search)
    complete = jax.lax.while_loop(lambda state: jnp.any(state.active), step, state).complete
    return _without_prompts(complete, history.prompt_lengths)


def _init_state(search: BeamSearch, history: History, cache: Cache) -> _State:
    rows = history.lengths.shape[0]
    count = search.num_beams
    beams = jax.tree.map(partial(jnp.repeat, repeats=count, axis=0), history)
    # All beams are the prompt; only the first counts, and no hypothesis is complete.
    first = jnp.arange(count)[None, :] == 0
    complete = Hypotheses(
        beams.tokens.reshape(rows, count, -1),
        beams.lengths.reshape(rows, count),
        jnp.full((rows, count), -jnp.inf),
    )
    return _State(
        history=beams,
        cache=cache.reorder(jnp.zeros((rows, count), jnp.int32)),
        totals=jnp.broadcast_to(jnp.where(first, 0.0, -jnp.inf), (rows, count)),
        complete=complete,
        active=history.limits > history.lengths,
    )


def _search_step(model: GenerativeModel, search: BeamSearch, state: _State) -> _State:
    count = search.num_beams
    logits, cache = decode_step(model, state.history, state.cache, jnp.repeat(state.active, count))
    log_probs = process(search.processors, jax.nn.log_softmax(logits), state.history)
    history = jax.tree.map(lambda x: x.reshape(-1, count, *x.shape[1:]), state.history)
    found = _continuations(search, state.totals, log_probs, history)
    complete = _completed(search, state, history, found)
    # Complete hypotheses are not continued.
    totals, order = jax.lax.top_k(jnp.where(found.end, -jnp.inf, found.totals), count)
    parents, tokens = (_along(x, order) for x in (found.parents, found.tokens))
    history = history._replace(
        tokens=_continued(history, parents, tokens),
        lengths=history.lengths + state.active[:, None],
    )
    return _State(
        history=jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), history),
        cache=cache.reorder(parents),
        totals=totals,
        complete=complete,
        active=state.active & _promising(search, history, totals, complete),
    )


def _continuations(
    search: BeamSearch, totals: jax.Array, log_probs: jax.Array, history: History
) -> _Continuations:
    rows, count = totals.shape
    vocab_size = log_probs.shape[1]
    sums = log_probs.reshape(rows, count, vocab_size) + totals[:, :, None]
    # Among this many candidates, at least `count` do not end.
    most = max(2, 1 + len(search.end_tokens)) * count
    totals, chosen = jax.lax.top_k(sums.reshape(rows, -1), min(most, count * vocab_size))
    tokens = chosen % vocab_size
    longest = history.lengths[:, :1] + 1 >= history.limits[:, :1]
    end = is_end(tokens, search.end_tokens) | longest
    return _Continuations(totals, chosen // vocab_size, tokens, end)


def _completed(
    search: BeamSearch, state: _State, history: History, found: _Continuations
) -> Hypotheses:
    """The best complete hypotheses after a step; unchanged for finished rows."""
    found = jax.tree.map(lambda x: x[:, : search.num_beams], found)
    lengths = history.lengths + 1
    scores = search.score(found.totals, (lengths - history.prompt_lengths)[:, 0])
    new = Hypotheses(
        _continued(history, found.parents, found.tokens),
        lengths,
        jnp.where(found.end & state.active[:, None], scores, -jnp.inf),
    )
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), state.complete, new)
    order = jax.lax.top_k(both.scores, search.num_beams)[1]
    return jax.tree.map(lambda x: _along(x, order), both)


def _promising(
    search: BeamSearch, history: History, totals: jax.Array, complete: Hypotheses
) -> jax.Array:
    """Bool `[B]`: whether a better hypothesis is possible."""
    ends = history.lengths
    if search.early_stopping == "never":
        # The length at which the score of a beam would be highest.
        ends = jnp.where(search.length_penalty > 0, history.limits, ends)
    best = search.score(totals[:, :1], (ends - history.prompt_lengths)[:, 0])
    worst = complete.scores[:, -1]
    promising = (best[:, 0] > worst) & (history.lengths < history.limits)[:, 0]
    # Fewer than n hypotheses are complete while the last has no score.
    return promising & (worst == -jnp.inf) if search.early_stopping is True else promising


def _continued(history: History, parents: jax.Array, tokens: jax.Array) -> jax.Array:
    """The tokens `[B, n, S]` of the parents `[B, n]`, each with one more token `[B, n]`."""
    positions = jnp.arange(history.tokens.shape[2])[None, None, :]
    last = positions == history.lengths[:, :1, None]
    return jnp.where(last, tokens[:, :, None], _along(history.tokens, parents))


def _along(x: jax.Array, order: jax.Array) -> jax.Array:
    """`x[b, order[b, i]]` for `x` `[B, m, ...]` and `order` `[B, n]`."""
    order = order.reshape(*order.shape, *[1] * (x.ndim - 2))
    return jnp.take_along_axis(x, order, axis=1, mode="clip")


def _without_prompts(texts: Hypotheses, prompt_lengths: jax.Array) -> Hypotheses:
    lengths = texts.lengths - prompt_lengths[:, None]
    order = jnp.arange(texts.tokens.shape[2])[None, None, :]
    positions = order + prompt_lengths[:, None, None]
    tokens = jnp.take_along_axis(texts.tokens, positions, axis=2, mode="clip")
    return Hypotheses(jnp.where(order < lengths[:, :, None], tokens, 0), lengths, texts.scores)
