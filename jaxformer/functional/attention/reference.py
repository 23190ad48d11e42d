"""The reference implementation of attention, which defines what the others compute."""

import jax
import jax.numpy as jnp

from jaxformer.functional.attention.request import Request
from jaxformer.functional.positions.base import Bias


def unsupported(query, key, value, request) -> None:
    """Returns None: the reference can express every request."""


def attend(query: jax.Array, key: jax.Array, value: jax.Array, request: Request) -> jax.Array:
    """Returns `attention` `[B, T, N, H]`, with all probabilities `[B, N, T, S]` in memory."""
    return attend_with_weights(query, key, value, request)[0]


def attend_with_weights(query, key, value, request: Request) -> tuple[jax.Array, jax.Array]:
    """Returns the output `[B, T, N, H]` and the probabilities `[B, N, T, S]`."""
    batch, length, num_heads, _ = query.shape
    num_keys, num_kv_heads = key.shape[1:3]
    accumulator = jnp.promote_types(query.dtype, jnp.float32)
    groups = num_heads // num_kv_heads
    grouped_BTKGH = query.reshape(batch, length, num_kv_heads, groups, query.shape[3])
    logits_BKGTS = jnp.einsum(
        "btkgh,bskh->bkgts", grouped_BTKGH, key, preferred_element_type=accumulator
    )
    logits_BNTS = logits_BKGTS.reshape(batch, num_heads, length, num_keys) * request.scale
    if request.softcap is not None:
        logits_BNTS = request.softcap * jnp.tanh(logits_BNTS / request.softcap)
    if request.bias is not None:
        bias = request.bias.values() if isinstance(request.bias, Bias) else request.bias
        logits_BNTS = logits_BNTS + bias.astype(accumulator)
    weights_BNTS = masked_softmax(logits_BNTS, request.mask.values(length, num_keys)[:, None])
    if request.dropout is not None:
        weights_BNTS = weights_BNTS * request.dropout.factors(0, length, 0, num_keys)
    weights_BKGTS = weights_BNTS.astype(query.dtype).reshape(logits_BKGTS.shape)
    output_BTKGH = jnp.einsum(
        "bkgts,bskh->btkgh", weights_BKGTS, value, preferred_element_type=accumulator
    )
    output_BTNH = output_BTKGH.reshape(batch, length, num_heads, value.shape[-1])
    return output_BTNH.astype(query.dtype), weights_BNTS


def masked_softmax(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Returns the softmax over the allowed entries of the last axis; zeros if none is allowed."""
    # Finite even in an empty row, so that no NaN can reach a gradient.
    highest = jnp.max(logits, axis=-1, keepdims=True, where=allowed, initial=-1e30)
    shifted = jnp.where(allowed, logits - jax.lax.stop_gradient(highest), 0.0)
    exponentials = jnp.where(allowed, jnp.exp(shifted), 0.0)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials / jnp.where(total == 0.0, 1.0, total)
