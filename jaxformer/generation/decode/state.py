"""Where the generation of a batch stands: what the compiled programs read and return."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxformer.distributed.sharding import on_rows, spec
from jaxformer.functional.assertions import assert_axes
from jaxformer.generation.decode.advance import Generative
from jaxformer.generation.decode.processors import History
from jaxformer.models.cache import Cache
from jaxformer.nn.cache import CacheShape

EncoderOutputs = tuple[Any, ...]
"""An encoder's output `[B, S, D]` and its mask; nothing for a decoder alone."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Of B rows with room for S tokens. The cache lacks at least the last token of each row."""

    history: History
    """The tokens."""
    cache: Cache
    """What the model keeps of them."""
    active: jax.Array
    """bool `[B]`: which rows go on."""
    keys: jax.Array
    """Random keys `[B]`: a row's draws depend on its own alone."""
    log_probs: jax.Array
    """float32 `[B, S]`: the model's log-probability of each generated token, 0 elsewhere."""
    scores: jax.Array | None
    """float32 `[N, B, V]`: the logits from which the n-th token was chosen; None if not asked
    for."""
    lacking: int = field(metadata={"static": True})
    """The most tokens of a row that the cache lacks; 1 from the first new token on."""


AnyState = TypeVar("AnyState", bound=State)


def started(
    model: Generative,
    shape: CacheShape,
    history: History,
    *,
    keys: jax.Array,
    longest: int,
    sources: EncoderOutputs = (),
    scores: tuple[int, int, int] | None = None,
) -> State:
    """Where rows stand before the model has read anything of them.

    Args:
        model: With its weights.
        shape: How much is to be kept; where it lies follows from the mesh.
        history: The prompts.
        keys: Random keys `[B]`.
        longest: The most tokens of a prompt.
        sources: What the decoder reads besides.
        scores: The shape `[N, B, V]` of the logits that are to be kept; None: none are.
    """
    assert_axes(
        tokens=(history.tokens, f"{shape.batch_size} S"),
        lengths=(history.lengths, f"{shape.batch_size}"),
        keys=(keys, f"{shape.batch_size}"),
    )
    shape = replace(shape, spec=spec("batch", None, "kv_heads", None))
    return State(
        history=history,
        cache=model.start(shape, *on_rows(sources)),
        active=history.limits > history.lengths,
        keys=keys,
        log_probs=jnp.zeros(history.tokens.shape, jnp.float32),
        scores=None if scores is None else jnp.zeros(scores, jnp.float32),
        lacking=longest,
    )
