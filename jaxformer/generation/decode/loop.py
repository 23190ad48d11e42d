"""Generation on the device: the cache, prefill, a decode step, and the loop."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxformer.distributed.sharding import on_rows, spec
from jaxformer.functional.arrays import assert_axes, place, spec_of, whole_rows
from jaxformer.functional.sampling.next_token import greedy, sample, token_log_probabilities
from jaxformer.generation.decode.processors import History, Processor, process
from jaxformer.models.decoder import GenerativeModel
from jaxformer.nn.cache import Cache, CacheShape

EncoderOutputs = tuple[Any, ...]
"""The encoder's output `[B, S, D]` and its mask; empty for a decoder-only model."""


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen. A program is compiled for each value of these."""

    processors: tuple[Processor, ...]
    """Applied to the logits first."""
    do_sample: bool
    """Whether tokens are sampled; otherwise they are the most probable ones."""
    end_tokens: tuple[int, ...]
    """The tokens that end a text."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """The generation of B rows with room for S tokens each."""

    history: History
    """The tokens."""
    cache: Cache
    """The model's cache of the tokens, without the last ones of each row."""
    active: jax.Array
    """bool `[B]`: the rows that are not finished."""
    keys: jax.Array
    """PRNG keys `[B]`: a row's samples depend only on its own key."""
    log_probs: jax.Array
    """float32 `[B, S]`: the model's log-probability of each generated token, 0 elsewhere."""
    scores: jax.Array | None
    """float32 `[N, B, V]`: the logits from which the n-th token was chosen; None: not kept."""
    pending: int = field(metadata={"static": True})
    """The maximum number of tokens of a row that are not in the cache yet: those that prefill left
    for the first decode step, and 1 from then on."""


AnyState = TypeVar("AnyState", bound=State)


def init_state(
    model: GenerativeModel,
    shape: CacheShape,
    history: History,
    *,
    keys: jax.Array,
    pending: int,
    encoder_outputs: EncoderOutputs = (),
    scores: tuple[int, int, int] | None = None,
    aligned: bool = True,
) -> State:
    """The state before the model has read any token, with an empty cache.

    `pending` is the maximum length of a prompt, `scores` the shape `[N, B, V]` of the logits to
    keep; None: they are not kept. `aligned` says whether all active rows get their new tokens in
    the same steps. The sharding of the cache follows from the mesh.
    """
    assert_axes(
        tokens=(history.tokens, f"{shape.batch_size} S"),
        lengths=(history.lengths, f"{shape.batch_size}"),
        keys=(keys, f"{shape.batch_size}"),
    )
    shape = replace(shape, spec=spec("batch", "kv_heads", None, None))
    cache = model.init_cache(shape, *on_rows(encoder_outputs))
    if aligned:
        # The last tokens of all prompts are in one slot, and so are the new ones of a step.
        shift = jnp.max(history.lengths) - history.lengths
        cache = replace(cache, shift=place(shift, spec_of(cache.lengths)))
    return State(
        history=history,
        cache=cache,
        active=history.limits > history.lengths,
        keys=keys,
        log_probs=jnp.zeros(history.tokens.shape, jnp.float32),
        scores=None if scores is None else jnp.zeros(scores, jnp.float32),
        pending=pending,
    )


def prefill(
    model: GenerativeModel, history: History, cache: Cache, start: jax.Array, size: int
) -> Cache:
    """Reads a chunk of the prompts into the cache, but never the last token of a prompt."""
    tokens_BT = jax.lax.dynamic_slice_in_dim(history.tokens, start, size, axis=1)
    count = jnp.clip(history.lengths - 1 - start, 0, size)
    return _step(model, tokens_BT, count, cache, history.lengths)[1]


def decode_step(
    model: GenerativeModel, history: History, cache: Cache, active: jax.Array, pending: int = 1
) -> tuple[jax.Array, Cache]:
    """Reads the pending tokens of active rows, and returns the next logits `[B, V]` and the cache.

    A row has at most `pending` of them. The logits are float32, and replicated on a mesh. Where the
    length of a row invalidates its cached keys (RoPE that is stretched beyond its original length),
    all tokens of all rows are read again.
    """
    tokens, lengths = history.tokens, history.lengths

    def read_pending(cache):
        return _last_state(model, *_pending(history, cache, active, pending), cache, lengths)

    def read_all(cache):
        return _last_state(model, tokens, lengths, cache.reset(), lengths)

    invalid = model.decoder_transformer.changes_at(lengths)
    if invalid is None:
        hidden_B1D, cache = read_pending(cache)
    else:
        hidden_B1D, cache = jax.lax.cond(jnp.any(invalid & active), read_all, read_pending, cache)
    # Processors and sampling need the whole vocabulary of every row.
    return place(model.logits(hidden_B1D)[:, 0], spec(None, None)), cache


def verify_step(
    model: GenerativeModel, history: History, cache: Cache, active: jax.Array, pending: int
) -> tuple[jax.Array, Cache]:
    """Like `decode_step`, with the logits `[B, P, V]` after every pending token.

    The positions of the model must not depend on the length.
    """
    tokens_BP, count = _pending(history, cache, active, pending)
    hidden_BPD, cache = _step(model, tokens_BP, count, cache, history.lengths)
    return place(model.logits(hidden_BPD), spec(None, None, None)), cache


def generate_token(model: GenerativeModel, sampling: SamplingParams, state: State) -> State:
    """Makes a decode step, and adds a token to every active row."""
    history, active = state.history, state.active
    logits_BV, cache = decode_step(model, history, state.cache, active, state.pending)
    processed_BV = process(sampling.processors, logits_BV, history)
    number = history.lengths - history.prompt_lengths
    if sampling.do_sample:
        tokens = sample(jax.vmap(jax.random.fold_in)(state.keys, number), processed_BV)
    else:
        tokens = greedy(processed_BV)
    rows = jnp.arange(tokens.shape[0])
    # Finished rows write out of bounds, where writes are dropped.
    positions = jnp.where(active, history.lengths, history.tokens.shape[1])
    log_probs = token_log_probabilities(logits_BV, tokens)
    scores = state.scores
    if scores is not None:
        scores = scores.at[jnp.where(active, number, scores.shape[0]), rows].set(
            processed_BV, mode="drop"
        )
    lengths = history.lengths + active
    ends = is_end(tokens, sampling.end_tokens)
    return replace(
        state,
        history=history._replace(
            tokens=history.tokens.at[rows, positions].set(tokens, mode="drop"), lengths=lengths
        ),
        cache=cache,
        active=active & ~ends & (lengths < history.limits),
        log_probs=state.log_probs.at[rows, positions].set(log_probs, mode="drop"),
        scores=scores,
        pending=1,
    )


def generate_tokens(
    model: GenerativeModel, sampling: SamplingParams, state: State, steps: jax.Array
) -> State:
    """Adds up to `steps` tokens to every active row; the state has one pending token per row."""
    return while_active(partial(generate_token, model, sampling), state, steps)


def while_active(
    step: Callable[[AnyState], AnyState], state: AnyState, steps: jax.Array
) -> AnyState:
    """Repeats `step` up to `steps` times, as long as a row is active."""

    def unfinished(carry):
        number, state = carry
        return (number < steps) & jnp.any(state.active)

    def advance(carry):
        number, state = carry
        return number + 1, step(state)

    return jax.lax.while_loop(unfinished, advance, (jnp.zeros((), jnp.int32), state))[1]


def is_end(tokens: jax.Array, end_tokens: tuple[int, ...]) -> jax.Array:
    """Whether each token ends a text: bool of the shape of `tokens`."""
    return jnp.isin(tokens, jnp.asarray(end_tokens, jnp.int32))


def _pending(history, cache, active, most):
    """The pending tokens `[B, most]`, and how many there are in each row."""
    start = place(cache.lengths, spec(None))
    positions = start[:, None] + jnp.arange(most)[None, :]
    tokens = jnp.take_along_axis(history.tokens, positions, axis=1, mode="clip")
    return tokens, jnp.where(active, history.lengths - start, 0)


def _last_state(model, tokens, count, cache, lengths):
    """The state `[B, 1, D]` of the last of `count` tokens, and the cache with the tokens."""
    hidden_BTD, cache = _step(model, tokens, count, cache, lengths)
    if tokens.shape[1] > 1:
        last = on_rows(jnp.maximum(count - 1, 0))[:, None, None]
        hidden_BTD = jnp.take_along_axis(hidden_BTD, last, axis=1)
    return hidden_BTD, cache


def _step(model, tokens, count, cache, lengths):
    """`model.step` on sharded rows, with the types of a loop's carry."""
    assert_axes(tokens=(tokens, "B T"), count=(count, "B"), lengths=(lengths, "B"))
    tokens, count, lengths = on_rows((tokens, count, lengths))
    hidden_BTD, after = model.step(tokens, cache, count=count, lengths=lengths)
    lengths = place(after.lengths, spec_of(cache.lengths))
    return whole_rows(hidden_BTD), replace(after, lengths=lengths)
