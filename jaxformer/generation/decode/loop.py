"""The compiled loop: one token of every row after another, without leaving the device."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxformer.functional.sampling.next_token import greedy, sample, token_log_probabilities
from jaxformer.generation.decode.advance import Generative, next_logits
from jaxformer.generation.decode.processors import Processor, process
from jaxformer.generation.decode.state import AnyState, State


@dataclass(frozen=True)
class Method:
    """How a token is chosen: what a program is compiled for."""

    processors: tuple[Processor, ...]
    """What happens to the logits before the choice."""
    draws: bool
    """Whether the token is drawn, or is the most probable one."""
    end_tokens: tuple[int, ...]
    """After these a row is over."""


def are_ends(tokens: jax.Array, end_tokens: tuple[int, ...]) -> jax.Array:
    """Which tokens are among those that end a text, bool of their shape."""
    return jnp.isin(tokens, jnp.asarray(end_tokens, jnp.int32))


def while_active(
    step: Callable[[AnyState], AnyState], state: AnyState, most: jax.Array
) -> AnyState:
    """The state after at most so many steps, fewer where all rows are over before."""

    def unfinished(carry):
        number, state = carry
        return (number < most) & jnp.any(state.active)

    def advanced(carry):
        number, state = carry
        return number + 1, step(state)

    return jax.lax.while_loop(unfinished, advanced, (jnp.zeros((), jnp.int32), state))[1]


def generate_tokens(model: Generative, method: Method, state: State, steps: jax.Array) -> State:
    """Adds up to `steps` tokens to every row that is not over.

    Args:
        model: With its weights.
        method: How tokens are chosen.
        state: Where the rows stand; the cache lacks one token of each.
        steps: int: at most so many tokens.

    Returns:
        The state after them. A row is over after an end token, or at its limit.
    """
    return while_active(partial(add_token, model, method), state, steps)


def add_token(model: Generative, method: Method, state: State) -> State:
    """Reads what the cache lacks, and adds a token to every row that is not over.

    Args:
        model: With its weights.
        method: How the token is chosen.
        state: Where the rows stand.
    """
    history, active = state.history, state.active
    logits, cache = next_logits(model, history, state.cache, active, state.lacking)
    processed = process(method.processors, logits, history)
    number = history.lengths - history.prompt_lengths
    if method.draws:
        tokens = sample(jax.vmap(jax.random.fold_in)(state.keys, number), processed)
    else:
        tokens = greedy(processed)
    rows = jnp.arange(tokens.shape[0])
    # Beyond the last place, which is nowhere, for rows that are over.
    places = jnp.where(active, history.lengths, history.tokens.shape[1])
    log_probs = token_log_probabilities(logits, tokens)
    scores = state.scores
    if scores is not None:
        scores = scores.at[jnp.where(active, number, scores.shape[0]), rows].set(
            processed, mode="drop"
        )
    lengths = history.lengths + active
    ends = are_ends(tokens, method.end_tokens)
    return replace(
        state,
        history=history._replace(
            tokens=history.tokens.at[rows, places].set(tokens, mode="drop"), lengths=lengths
        ),
        cache=cache,
        active=active & ~ends & (lengths < history.limits),
        log_probs=state.log_probs.at[rows, places].set(log_probs, mode="drop"),
        scores=scores,
        lacking=1,
    )
