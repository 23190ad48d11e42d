"""`Request`, the arguments of an attention implementation, and the reference implementation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxformer.functional.activations import tap
from jaxformer.functional.attention.distances import DistanceTerms
from jaxformer.functional.dropout import Dropout
from jaxformer.functional.linear import dot_groups
from jaxformer.functional.masks import Mask
from jaxformer.functional.positions.bias import Bias, DenseBias

# The logit of a head's sink if it has none: it is negligible next to any key, and lets a query
# without keys have zeros. Finite, so that the difference of two of them is 0 instead of NaN.
LOWEST = -1e30


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("mask", "bias", "dropout", "distances", "sinks"),
    meta_fields=("scale", "softcap"),
)
@dataclass(frozen=True)
class Request:
    """Mask, bias, dropout, scale, soft-cap, distances and sinks of one call of attention."""

    mask: Mask
    bias: Bias | DenseBias | None
    dropout: Dropout | None
    scale: float
    softcap: float | None
    distances: DistanceTerms | None = None
    sinks: jax.Array | None = None

    def block(self, query_start, query_size: int, key_start, key_size: int) -> Request:
        """Returns the request of a window of queries and keys, see `Bias.block`."""
        window = (query_start, query_size, key_start, key_size)
        bias, dropout, distances = self.bias, self.dropout, self.distances
        return replace(
            self,
            mask=self.mask.block(*window),
            bias=None if bias is None else bias.block(*window),
            dropout=None if dropout is None else dropout.from_pair(query_start, key_start),
            distances=None if distances is None else distances.block(*window),
        )


def attend(query: jax.Array, key: jax.Array, value: jax.Array, request: Request) -> jax.Array:
    """Returns `attention` `[B, T, N, H']`, with all probabilities `[B, N, T, S]` in memory."""
    weights_BNTS = _weights(_logits(query, key, request), _allowed(query, key, request), request)
    return _weighted_sum(weights_BNTS, value, query.dtype)


def attend_with_weights(query, key, value, request: Request, per_device):
    """Returns the output and the probabilities `[B, N, T, S]`, and names intermediate activations.

    They are named outside of `per_device`, so that hooks see global arrays.
    """

    def scores(query, key, value, request):
        del value
        allowed = _allowed(query, key, request)
        return jnp.where(allowed, _logits(query, key, request), -jnp.inf).swapaxes(1, 2)

    def weighted_sum(weights_BTNS, key, value, request):
        del key, request
        return _weighted_sum(weights_BTNS.swapaxes(1, 2), value, query.dtype)

    scores_BNTS = per_device(scores, query, key, value, request).swapaxes(1, 2)
    scores_BNTS = tap("hook_attn_scores", scores_BNTS)
    weights_BNTS = _weights(scores_BNTS, scores_BNTS > -jnp.inf, request)
    weights_BNTS = tap("hook_pattern", weights_BNTS)
    output = per_device(weighted_sum, weights_BNTS.swapaxes(1, 2), key, value, request)
    return output, weights_BNTS


def _allowed(query, key, request: Request) -> jax.Array:
    return request.mask.values(query.shape[1], key.shape[1])[:, None]


def _logits(query, key, request: Request) -> jax.Array:
    """Returns the scaled and biased logits `[B, N, T, S]`, before the mask."""
    batch, length, num_heads, width = query.shape
    num_keys, num_kv_heads = key.shape[1:3]
    accumulator = jnp.promote_types(query.dtype, jnp.float32)
    grouped = (batch, length, num_kv_heads, num_heads // num_kv_heads, width)
    query_BKGTH = query.reshape(grouped).transpose(0, 2, 3, 1, 4)
    key_BKSH = key.swapaxes(1, 2)
    logits = dot_groups(query_BKGTH, key_BKSH, 2)
    if request.distances is not None:
        logits += request.distances.scores(query_BKGTH, key_BKSH).reshape(logits.shape)
    logits_BNTS = logits.reshape(batch, num_heads, length, num_keys) * request.scale
    if request.softcap is not None:
        logits_BNTS = request.softcap * jnp.tanh(logits_BNTS / request.softcap)
    if request.bias is not None:
        logits_BNTS = logits_BNTS + request.bias.values().astype(accumulator)
    return logits_BNTS


def _weights(logits_BNTS, allowed, request: Request) -> jax.Array:
    """Returns the probabilities `[B, N, T, S]`, after dropout."""
    sinks = LOWEST if request.sinks is None else request.sinks[None, :, None, None]
    weights_BNTS = masked_softmax(logits_BNTS, allowed, sinks)
    if request.dropout is None:
        return weights_BNTS
    length, num_keys = weights_BNTS.shape[2:]
    return weights_BNTS * request.dropout.factors(0, length, 0, num_keys)


def _weighted_sum(weights_BNTS, value, dtype) -> jax.Array:
    """Returns the mean of the values weighted by the probabilities, `[B, T, N, H']`."""
    batch, num_heads, length, num_keys = weights_BNTS.shape
    num_kv_heads = value.shape[2]
    grouped = (batch, num_kv_heads, num_heads // num_kv_heads, length, num_keys)
    weights_BKGTS = weights_BNTS.astype(dtype).reshape(grouped)
    output = dot_groups(weights_BKGTS, value.swapaxes(1, 2), 1, dtype)
    output_BNTH = output.reshape(batch, num_heads, length, value.shape[-1])
    return output_BNTH.swapaxes(1, 2)


def masked_softmax(
    logits: jax.Array, allowed: jax.Array, sinks: jax.Array | float = LOWEST
) -> jax.Array:
    """Returns the softmax over the allowed entries of the last axis; zeros if none is allowed."""
    # A sink is an additional entry of each row, which is always allowed and is not returned.
    masked = jnp.where(allowed, logits, -jnp.inf)
    highest = jnp.max(masked, axis=-1, keepdims=True, initial=-jnp.inf)
    highest = jax.lax.stop_gradient(jnp.maximum(highest, sinks))
    exponentials = jnp.exp(masked - highest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True) + jnp.exp(sinks - highest)
    return exponentials / total
