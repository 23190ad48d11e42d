"""Names of activations that the backward pass can find again instead of computing them again."""

from typing import Literal

import jax
from jax.ad_checkpoint import checkpoint_name

Saveable = Literal[
    "block_input",
    "query_key_value",
    "attention_context",
    "attention_output",
    "mlp_input",
    "mlp_hidden",
    "mlp_output",
]

SAVEABLE: dict[Saveable, str] = {
    "block_input": "the residual stream that a block reads, [B, T, D]",
    "query_key_value": "queries [B, T, N, H], keys and values [B, S, K, H], before norm and "
    "rotation",
    "attention_context": "the weighted values [B, T, N, H], and what the kernel needs to go back: "
    "a float32 number for each query [B, N, T]; the reference implementation keeps neither",
    "attention_output": "the attention's output projection, [B, T, D]",
    "mlp_input": "what the feed-forward layer reads, [B, T, D]",
    "mlp_hidden": "the feed-forward layer's hidden units before their activation, [B, T, F], and "
    "those of the gate",
    "mlp_output": "what the feed-forward layer returns, [B, T, D]",
}
"""The names, and what bears them; each attention of a block has its own of each."""


def saveable(name: Saveable, x: jax.Array) -> jax.Array:
    """Gives an activation a name for `jax.checkpoint` policies; the values stay as they are.

    Args:
        name: A key of `SAVEABLE`.
        x: Any shape.

    Returns:
        The same array.
    """
    return checkpoint_name(x, name)
