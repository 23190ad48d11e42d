"""A block of queries against a block of keys: what attention in blocks computes for one pair."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.functional.attention.request import Request
from jaxformer.functional.linear import dot
from jaxformer.functional.positions.base import Bias


class Blocks(NamedTuple):
    """The sizes of the query and key blocks."""

    query: int
    key: int


class Tile:
    """A block of queries against one block of keys after another."""

    def __init__(self, request: Request, blocks: Blocks, query_start):
        self.request, self.blocks, self.query_start = request, blocks, query_start

    def rows(self, x_BKGT: jax.Array) -> jax.Array:
        """This block's queries out of `[B, K, G, T, ...]`."""
        return jax.lax.dynamic_slice_in_dim(x_BKGT, self.query_start, self.blocks.query, 3)

    def keys(self, x_BKSH: jax.Array, key_start) -> jax.Array:
        """A block of keys or values out of `[B, K, S, H]`."""
        return jax.lax.dynamic_slice_in_dim(x_BKSH, key_start, self.blocks.key, 2)

    def window(self, key_start) -> tuple:
        """The start and size of the block along both axes, for masks, biases and dropout."""
        return self.query_start, self.blocks.query, key_start, self.blocks.key

    def over_keys(self, num_keys: int, visit: Callable, start):
        """Folds `visit(key_start, carry)` over the key blocks that some query may attend to.

        Args:
            num_keys: The number of keys, a multiple of the block's.
            visit: Returns the next carry.
            start: The first carry.

        Returns:
            The last carry.
        """
        size = self.blocks.key
        mask = self.request.mask.block(self.query_start, self.blocks.query, 0, num_keys)
        if not mask.has_gaps:
            low, high = mask.key_bounds(self.blocks.query, num_keys)
            bounds = low // size, -(-high // size)
            return jax.lax.fori_loop(*bounds, lambda i, carry: visit(i * size, carry), start)
        visited = mask.key_blocks(self.blocks.query, num_keys, size)
        starts = jnp.argsort(~visited, stable=True) * size
        count = jnp.sum(visited)
        return jax.lax.fori_loop(0, count, lambda i, carry: visit(starts[i], carry), start)

    def logits(self, query: jax.Array, key: jax.Array, key_start) -> tuple[jax.Array, ...]:
        """The logits, which pairs are allowed, and d logits / d (query . key)."""
        request = self.request
        products = rows_by_keys(query, key)
        if request.distances is not None:
            products += request.distances.block(*self.window(key_start)).scores(query, key)
        logits = products * request.scale
        slope = request.scale
        if request.softcap is not None:
            bounded = jnp.tanh(logits / request.softcap)
            logits, slope = request.softcap * bounded, slope * (1.0 - bounded**2)
        if request.bias is not None:
            bias_BNQS = _bias_values(request.bias, self.window(key_start))
            logits = logits + _grouped(bias_BNQS, key.shape[1]).astype(logits.dtype)
        allowed_BQS = request.mask.block(*self.window(key_start)).values(*self.blocks)
        return logits, allowed_BQS[:, None, None], slope

    def score_gradients(self, query, query_columns, key, of_scores, key_start) -> tuple:
        """The gradients of the products of queries and keys, given that of their sum.

        Args:
            query: This block's queries.
            query_columns: The same, see `columns`.
            key: A block of keys.
            of_scores: The cotangent, `[B, K, G, Q, S]`.
            key_start: The index of the first key.

        Returns:
            The gradients of the queries, of the keys `[B, K, H, S]`, and of the distances' vectors
            as `columns`.
        """
        of_query = weights_by_values(of_scores, key)
        of_key = columns_by_weights(query_columns, of_scores)
        if self.request.distances is None:
            return of_query, of_key, None
        block = self.request.distances.block(*self.window(key_start))
        more_query, more_key, of_vectors = block.gradients(query, key, of_scores)
        return of_query + more_query, of_key + more_key, of_vectors

    def add_distance_gradient(self, total, of_block, key_start):
        """`total` plus the gradient of the vectors of this block's distances, as `columns`."""
        if total is None:
            return None
        start = self.request.distances.start(self.query_start, self.blocks.query, key_start)

        def add(total, update):
            current = jax.lax.dynamic_slice_in_dim(total, start, update.shape[2], 2)
            return jax.lax.dynamic_update_slice_in_dim(total, current + update, start, 2)

        vectors = replace(of_block, num_queries=total.num_queries)
        return jax.tree.map(add, total, vectors)

    def dropped(self, weights: jax.Array, key_start) -> jax.Array:
        """The weights, or their gradient, after dropout."""
        if self.request.dropout is None:
            return weights
        factors_BNQS = self.request.dropout.factors(*self.window(key_start))
        return weights * _grouped(factors_BNQS, weights.shape[1])

    def add_bias_gradient(self, total, of_logits: jax.Array, key_start):
        """`total` plus what this block contributes to the gradient of the bias."""
        bias = self.request.bias
        if total is None:
            return None
        batch, kv_heads, groups, *pairs = of_logits.shape
        of_values = of_logits.reshape(batch, kv_heads * groups, *pairs)
        if isinstance(bias, Bias):
            block = bias.block(*self.window(key_start))
            values, pull = jax.vjp(lambda heads: replace(block, heads=heads).values(), bias.heads)
            of_heads = pull(_summed_to(of_values, values.shape).astype(values.dtype))[0]
            return total + of_heads.astype(total.dtype)
        start = (0, 0, self.query_start, key_start)
        update = _summed_to(of_values, (*bias.shape[:2], *pairs))
        current = jax.lax.dynamic_slice(total, start, update.shape)
        return jax.lax.dynamic_update_slice(total, current + update, start)


def _summed_to(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`x` summed over the axes that `shape` broadcasts."""
    if shape[0] < x.shape[0]:
        x = _pairwise_sum(x)
    axes = [axis for axis, size in enumerate(shape) if size < x.shape[axis]]
    return jnp.sum(x, axes, keepdims=True)


def _pairwise_sum(x: jax.Array) -> jax.Array:
    """`[B, ...]` summed to `[1, ...]`: XLA's CPU backend takes forty times as long otherwise."""
    while (count := x.shape[0]) > 1:
        half = count // 2
        x = jnp.concatenate([x[:half] + x[half : 2 * half], x[2 * half :]])
    return x


def rows_by_keys(rows_BKGQH, key_BKSH):
    """`[B, K, G, Q, H] x [B, K, S, H] -> [B, K, G, Q, S]`, the group folded into the rows."""
    product = dot(_folded(rows_BKGQH), key_BKSH, (((3,), (3,)), ((0, 1), (0, 1))))
    return product.reshape(*rows_BKGQH.shape[:4], -1)


def weights_by_values(weights_BKGQS, value_BKSH):
    """`[B, K, G, Q, S] x [B, K, S, H] -> [B, K, G, Q, H]`."""
    product = dot(_folded(weights_BKGQS), value_BKSH, (((3,), (2,)), ((0, 1), (0, 1))))
    return product.reshape(*weights_BKGQS.shape[:4], -1)


def columns(rows_BKGQH):
    """`[B, K, G, Q, H] -> [B, K, H, G Q]`."""
    # Folded into the product, the transpose makes one for which XLA's CPU backend has no kernel.
    return jax.lax.optimization_barrier(_folded(rows_BKGQH).mT)


def columns_by_weights(columns_BKHX, weights_BKGQS):
    """Returns `[B, K, H, G Q] x [B, K, G, Q, S] -> [B, K, H, S]`, summed over the group's queries.

    XLA's CPU backend computes this product twice as fast as that of the rows, whose contracted axis
    does not come last.
    """
    return dot(columns_BKHX, _folded(weights_BKGQS), (((3,), (2,)), ((0, 1), (0, 1))))


def _folded(x_BKGQ: jax.Array) -> jax.Array:
    batch, kv_heads, groups, length, last = x_BKGQ.shape
    return x_BKGQ.reshape(batch, kv_heads, groups * length, last)


def _grouped(x_BNQS: jax.Array, num_kv_heads: int) -> jax.Array:
    """`[B or 1, N or 1, Q, S]` as `[B or 1, K or 1, G or 1, Q, S]`."""
    batch, num_heads, *pairs = x_BNQS.shape
    return x_BNQS.reshape(batch, *((1, 1) if num_heads == 1 else (num_kv_heads, -1)), *pairs)


def joined(blocks_of: jax.Array) -> jax.Array:
    """`[blocks, B, K, G, Q, ...]` as `[B, K, G, T, ...]`."""
    x = jnp.moveaxis(blocks_of, 0, 3)
    return x.reshape(*x.shape[:3], -1, *x.shape[5:])


def add_at(total: jax.Array, update: jax.Array, key_start) -> jax.Array:
    """Adds one block's gradient to `[B, K, H, S]` at its keys."""
    size = update.shape[3]
    current = jax.lax.dynamic_slice_in_dim(total, key_start, size, 3)
    return jax.lax.dynamic_update_slice_in_dim(total, current + update, key_start, 3)


def _bias_values(bias, window: tuple) -> jax.Array:
    """The bias of one block of pairs: `[B or 1, N or 1, Q, S]`."""
    if isinstance(bias, Bias):
        return bias.block(*window).values()
    query_start, query_size, key_start, key_size = window
    rows = jax.lax.dynamic_slice_in_dim(bias, query_start, query_size, 2)
    return jax.lax.dynamic_slice_in_dim(rows, key_start, key_size, 3)
