"""The compiled loop of speculative decoding: a draft proposes, the target reads it all at once."""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.functional.sampling.next_token import greedy, sample, token_log_probabilities
from jaxformer.functional.sampling.speculative import Verdict, accept_by_chance, accept_greedily
from jaxformer.generation.decode.advance import Generative, logits_of_lacking, next_logits
from jaxformer.generation.decode.loop import Method, are_ends, while_active
from jaxformer.generation.decode.processors import History, process
from jaxformer.generation.decode.state import State
from jaxformer.models.cache import Cache

_TO_PROPOSE, _TO_JUDGE = 0, 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpeculativeState(State):
    """Of B rows. The draft's cache lacks the last token of each row, or the last two."""

    draft_cache: Cache
    """What the draft keeps of the tokens."""
    proposed: jax.Array
    """int32 `[B]`: how many tokens the draft has proposed."""
    accepted: jax.Array
    """int32 `[B]`: how many of these the target took."""


class _Proposal(NamedTuple):
    """What a draft adds to each row."""

    history: History
    """With the proposed tokens."""
    cache: Cache
    """The draft's, of all of them but the last."""
    ended: jax.Array
    """bool `[B]`: whether the last of them is an end token."""
    logits: jax.Array | None
    """float32 `[B, k, V]`: from which they were drawn; None: they are the most probable ones."""


def speculate(
    target: Generative,
    draft: Generative,
    method: Method,
    proposals: int,
    state: SpeculativeState,
    steps: jax.Array,
) -> SpeculativeState:
    """Adds tokens to every row that is not over: at least `steps`, or what is left of it.

    Each step adds between one token and `proposals + 1`, to each row its own number of them.

    Args:
        target: The model whose tokens these are, with its weights.
        draft: The model that proposes them, with its weights.
        method: How tokens are chosen, from the logits of both.
        proposals: K, how many are proposed in a step.
        state: Where the rows stand.
        steps: int: at most so many passes of the target.

    Returns:
        The state after them. A row is over after an end token, or at its limit.
    """
    step = partial(_with_accepted_tokens, target, draft, method, proposals)
    return while_active(step, state, steps)


def _with_accepted_tokens(target, draft, method, proposals, state) -> SpeculativeState:
    history, active = state.history, state.active
    proposal = _proposed(draft, method, proposals, state)
    count = proposal.history.lengths - history.lengths
    logits, cache = logits_of_lacking(target, proposal.history, state.cache, active, proposals + 1)
    # Where the token that is chosen from each of these logits will stand.
    places = history.lengths[:, None] + jnp.arange(proposals + 1)[None, :]
    processed = _processed(method, logits, proposal.history, places)
    number = places - history.prompt_lengths[:, None]
    verdict = _verdict(method, state.keys, proposal, count, processed, places, number)
    # After an end token nothing follows, and so no replacement.
    complete = proposal.ended & (verdict.accepted == count)
    replaces = active & ~complete
    lengths = history.lengths + verdict.accepted + replaces
    rows, nowhere = jnp.arange(active.shape[0]), history.tokens.shape[1]
    at = jnp.where(replaces, history.lengths + verdict.accepted, nowhere)
    tokens = proposal.history.tokens.at[rows, at].set(verdict.replacement, mode="drop")
    log_probs = token_log_probabilities(logits, _tokens_at(tokens, places))
    kept = places < lengths[:, None]
    scores = state.scores
    if scores is not None:
        step = jnp.where(kept, number, scores.shape[0])
        scores = scores.at[step, rows[:, None]].set(processed, mode="drop")
    log_probs = state.log_probs.at[rows[:, None], jnp.where(kept, places, nowhere)].set(
        log_probs, mode="drop"
    )
    ends = are_ends(verdict.replacement, method.end_tokens)
    return replace(
        state,
        history=history._replace(tokens=tokens, lengths=lengths),
        cache=_taken_back(cache, lengths),
        active=replaces & ~ends & (lengths < history.limits),
        log_probs=log_probs,
        scores=scores,
        draft_cache=_taken_back(proposal.cache, lengths),
        proposed=state.proposed + count,
        accepted=state.accepted + verdict.accepted,
    )


def _proposed(draft: Generative, method: Method, proposals: int, state) -> _Proposal:
    """Up to `proposals` tokens of the draft's for each row: up to an end, one before the limit."""

    def propose(carry, _, lacking=1):
        history, cache, going, ended = carry
        # The last place is the target's.
        going = going & (history.lengths < history.limits - 1)
        logits, cache = next_logits(draft, history, cache, going, lacking)
        logits = process(method.processors, logits, history)
        if method.draws:
            number = history.lengths - history.prompt_lengths
            tokens = sample(_place_keys(state.keys, number)[:, _TO_PROPOSE], logits)
        else:
            tokens, logits = greedy(logits), None
        rows = jnp.arange(tokens.shape[0])
        places = jnp.where(going, history.lengths, history.tokens.shape[1])
        ended = ended | (going & are_ends(tokens, method.end_tokens))
        history = history._replace(
            tokens=history.tokens.at[rows, places].set(tokens, mode="drop"),
            lengths=history.lengths + going,
        )
        return (history, cache, going & ~ended, ended), logits

    nowhere = jnp.zeros_like(state.active)
    carry = state.history, state.draft_cache, state.active, nowhere
    # After a step whose tokens were all accepted, the draft has not read the last of them either.
    carry, first = propose(carry, None, lacking=2)
    carry, others = jax.lax.scan(propose, carry, length=proposals - 1)
    history, cache, _, ended = carry
    logits = None
    if method.draws:
        logits = jnp.concatenate([first[:, None], jnp.swapaxes(others, 0, 1)], axis=1)
    return _Proposal(history, cache, ended, logits)


def _verdict(method, row_keys, proposal, count, processed, places, number) -> Verdict:
    tokens = _tokens_at(proposal.history.tokens, places[:, :-1])
    if not method.draws:
        return accept_greedily(tokens, count, processed)
    keys = jax.vmap(partial(_place_keys, row_keys), 1, 1)(number)[..., _TO_JUDGE]
    return accept_by_chance(keys, tokens, count, proposal.logits, processed)


def _processed(method: Method, logits, history: History, places):
    """The logits `[B, n, V]` after the processors, each with the history up to its place."""

    def of_place(logits, lengths):
        return process(method.processors, logits, history._replace(lengths=lengths))

    return jax.vmap(of_place, 1, 1)(logits, places)


def _place_keys(row_keys, number):
    """Random keys `[B, 2]` of the n-th new token of each row: to propose it, and to judge it.

    A place may be proposed anew with the same key: what was proposed for it before fell with a
    token before it, whatever it was itself.
    """
    return jax.vmap(jax.random.split)(jax.vmap(jax.random.fold_in)(row_keys, number))


def _tokens_at(tokens, places):
    """`tokens[b, places[b, n]]`, `[B, n]`; any token beyond the last place."""
    return jnp.take_along_axis(tokens, places, axis=1, mode="clip")


def _taken_back(cache: Cache, lengths) -> Cache:
    """The cache of no more than all tokens but the last of each row."""
    return replace(cache, lengths=jnp.minimum(cache.lengths, lengths - 1))
