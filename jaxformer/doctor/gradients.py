"""Gradients that some releases of jaxlib compute wrongly."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional import attention, feed_forward, gelu, layer_norm
from jaxformer.functional.masks import causal

Pairs = Iterable[tuple[Any, Any]]
"""Pairs of JAX's result and the correct result."""


def normal(*shape: int) -> np.ndarray:
    """Returns normal random numbers, deterministic for each shape."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def attention_gradients() -> Pairs:
    """Computes gradients of causal attention with respect to queries, keys and values."""
    for batch, length, heads, channels in ((2, 64, 2, 16), (512, 10, 4, 32)):
        arrays = [normal(batch, length, heads, channels) for _ in range(3)]
        arrays[1] = arrays[1][::-1].copy()
        weights = normal(batch, length, heads, channels)[..., ::-1].copy()

        def weighted(*arrays, weights=weights):
            return jnp.sum(attention(*arrays, mask=causal()) * weights)

        gradients = jax.jit(jax.grad(weighted, (0, 1, 2)))(*arrays)
        yield from zip(gradients, _true_attention_gradients(*arrays, weights), strict=True)


def _true_attention_gradients(query, key, value, upstream) -> list[np.ndarray]:
    query, key, value, upstream = (
        np.moveaxis(array.astype(np.float64), 2, 1) for array in (query, key, value, upstream)
    )
    scale = query.shape[-1] ** -0.5
    allowed = np.tril(np.ones((query.shape[2], key.shape[2]), bool))
    scores = np.where(allowed, scale * query @ key.swapaxes(-1, -2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    of_weights = upstream @ value.swapaxes(-1, -2)
    of_scores = scale * weights * (of_weights - (of_weights * weights).sum(-1, keepdims=True))
    found = of_scores @ key, of_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ upstream
    return [np.moveaxis(array, 1, 2) for array in found]


def norm_gradients() -> Pairs:
    """Computes gradients of a norm's inputs, scale and bias, summed over many rows."""
    x = normal(40_000, 32)
    scale = normal(32)
    upstream = normal(40_000, 32)[::-1].copy()

    def weighted(x, scale, bias):
        return jnp.sum(layer_norm(x, scale, bias, eps=1e-5) * upstream)

    found = jax.jit(jax.grad(weighted, (0, 1, 2)))(x, scale, jnp.zeros(32))
    x, scale, upstream = (array.astype(np.float64) for array in (x, scale, upstream))
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    unit, inner = centred / deviation, upstream * scale
    means = inner.mean(-1, keepdims=True) + unit * (inner * unit).mean(-1, keepdims=True)
    truth = (inner - means) / deviation, (upstream * unit).sum(0), upstream.sum(0)
    yield from zip(found, truth, strict=True)


def frozen_gradients() -> Pairs:
    """Computes gradients through two frozen blocks, after filling free memory with NaN."""
    up = normal(2, 64, 128) / 8
    down = normal(2, 128, 64) / 11
    scales = 1 + normal(2, 2, 64) / 9

    def block(x, kernels):
        up, down, (before, after) = kernels
        x = layer_norm(x, before, None, eps=1e-6)
        return layer_norm(x + feed_forward(x, up, down, activation=gelu), after, None, eps=1e-6), ()

    def weighted(x, upstream):
        y = jax.lax.scan(block, x, (up, down, scales))[0]
        return jnp.sum(y * upstream, dtype=jnp.promote_types(y.dtype, jnp.float32))

    x, upstream = (jnp.asarray(array, jnp.bfloat16) for array in (normal(32, 128, 64),) * 2)
    upstream = upstream[::-1]
    compiled = jax.jit(jax.grad(weighted))
    found = []
    for _ in range(3):
        compiled(x * np.nan, upstream)
        found.append(compiled(x, upstream))
    with jax.enable_x64(True):
        truth = jax.jit(jax.grad(weighted))(*(np.asarray(a, np.float64) for a in (x, upstream)))
    yield from ((gradient, truth) for gradient in found)
