"""Pools the states of a text's tokens, in the modes of sentence-transformers."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxformer.models.heads.base import pool

Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
_POOLS = {"cls": "first", "lasttoken": "last", "mean": "mean"}


def pooled(hidden: jax.Array, valid: jax.Array, counted: jax.Array, mode: Mode) -> jax.Array:
    r"""Returns one vector for each text.

    .. math:: \frac{\sum_t w_t h_t}{\sum_t w_t} \quad \text{or} \quad \max_t h_t

    where w is 1 ("mean"), t + 1 ("weightedmean"), or 1 for one token alone ("cls", "lasttoken").
    "mean_sqrt_len_tokens" divides the sum by the root of the number of tokens.

    Args:
        hidden: `[B, T, D]`, the states.
        valid: bool `[B, T]`, the tokens that are not padding, on either side.
        counted: bool `[B, T]`, those of them that count: all, or those after a prompt. A token's
            place t does not depend on what counts.
        mode: The pooling mode.

    Returns:
        `[B, D]`; float32, or the dtype of `hidden`.
    """
    if mode in _POOLS:
        return pool(hidden, counted, _POOLS[mode])
    if mode == "max":
        return jnp.max(jnp.where(counted[:, :, None], hidden, -jnp.inf), axis=1)
    if mode == "mean_sqrt_len_tokens":
        count = jnp.sum(counted, axis=1, keepdims=True)
        return pool(hidden, counted, "mean").astype(jnp.float32) * jnp.sqrt(count)
    weights = jnp.where(counted, jnp.cumsum(valid, axis=1), 0).astype(jnp.float32)
    total = jnp.sum(hidden.astype(jnp.float32) * weights[:, :, None], axis=1)
    return total / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1e-9)
