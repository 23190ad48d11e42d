"""Where the generation of a batch stands: what the compiled programs read and return."""

from dataclasses import dataclass
from functools import partial

import jax

from jaxformer.generation.processors import History
from jaxformer.models.cache import Cache


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("history", "cache", "active", "keys", "log_probs", "scores"),
    meta_fields=(),
)
@dataclass(frozen=True)
class State:
    """Of B rows with room for S tokens. The cache lacks the last token of each row."""

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
