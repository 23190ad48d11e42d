"""What the sublayers of a stack read besides the residual stream."""

from dataclasses import dataclass
from functools import partial

import jax

from jaxformer.functional.masks import Mask
from jaxformer.functional.positions.base import Bias
from jaxformer.nn.cache import Span


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("positions", "mask", "bias", "memory", "memory_mask", "layer"),
        *("span", "lengths"),
    ),
    meta_fields=(),
)
@dataclass(frozen=True)
class Context:
    """Shared by all layers of one call."""

    positions: jax.Array
    """int `[B or 1, T]`: where each token stands."""
    mask: Mask = Mask()
    """Who sees whom in self-attention."""
    bias: Bias | None = None
    """The positional scheme's attention bias."""
    memory: jax.Array | None = None
    """`[B, S, D]`: an encoder's output, for cross-attention."""
    memory_mask: Mask = Mask()
    """Which places of the memory are real."""
    layer: jax.Array | int = 0
    """How many layers lie below; the stack sets it."""
    span: Span | None = None
    """Which tokens these are, where those before them are kept in a cache."""
    lengths: jax.Array | None = None
    """int `[B]`: the tokens of each row, for schemes that depend on it, where not all are here."""
