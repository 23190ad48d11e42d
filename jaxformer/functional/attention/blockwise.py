"""Blockwise attention: the result of the reference implementation in O(T + S) memory.

The forward pass keeps a running maximum and sum per query (online softmax) and stores one number a
query, the log of the softmax denominator; the backward pass recomputes each block's probabilities
from it. Fully masked blocks are skipped in both passes. Forward-mode differentiation of both passes
needs no more memory; reverse mode over the gradient uses the reference implementation.

References:
    Rabe and Staats, Self-attention does not need O(n^2) memory, 2021.
    Dao et al., FlashAttention, 2022.
"""
# long: the tiles, the forward pass and its derivative are one algorithm

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.functional.activations import saveable
from jaxformer.functional.attention import reference
from jaxformer.functional.attention.reference import LOWEST, Request
from jaxformer.functional.derivatives import differentiable, pulled, pushed, reversed_by
from jaxformer.functional.linear import dot
from jaxformer.functional.masks import KeyPadding


class Blocks(NamedTuple):
    """The sizes of the query and key blocks."""

    query: int
    key: int


class Tile:
    """A block of queries, processed against successive blocks of keys."""

    def __init__(self, request: Request, blocks: Blocks, query_start):
        self.request = request
        self.blocks = blocks
        self.query_start = query_start

    def rows(self, x_BKGT: jax.Array) -> jax.Array:
        """Returns this block's queries from `[B, K, G, T, ...]`."""
        return jax.lax.dynamic_slice_in_dim(x_BKGT, self.query_start, self.blocks.query, 3)

    def keys(self, x_BKSH: jax.Array, key_start) -> jax.Array:
        """Returns a block of keys or values from `[B, K, S, H]`."""
        return jax.lax.dynamic_slice_in_dim(x_BKSH, key_start, self.blocks.key, 2)

    def window(self, key_start) -> tuple:
        """Returns the start and size of the block along both axes."""
        return self.query_start, self.blocks.query, key_start, self.blocks.key

    def over_keys(self, num_keys: int, visit: Callable, start):
        """Folds `visit(key_start, carry)` over the key blocks that are not fully masked."""
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
        """Returns the logits, the allowed pairs, and d logits / d (query . key)."""
        request = self.request
        products = rows_by_keys(query, key)
        if request.distances is not None:
            products += request.distances.block(*self.window(key_start)).scores(query, key)
        logits = products * request.scale
        slope = request.scale
        if request.softcap is not None:
            bounded = jnp.tanh(logits / request.softcap)
            logits = request.softcap * bounded
            slope = slope * (1.0 - bounded**2)
        if request.bias is not None:
            bias_BNQS = request.bias.block(*self.window(key_start)).values()
            logits = logits + _grouped(bias_BNQS, key.shape[1]).astype(logits.dtype)
        allowed_BQS = request.mask.block(*self.window(key_start)).values(*self.blocks)
        return logits, allowed_BQS[:, None, None], slope

    def score_gradients(self, query, query_columns, key, of_scores, key_start) -> tuple:
        """Returns the gradients of queries, keys `[B, K, H, S]` and distances (as `columns`)."""
        of_query = weights_by_values(of_scores, key)
        of_key = columns_by_weights(query_columns, of_scores)
        if self.request.distances is None:
            return of_query, of_key, None
        block = self.request.distances.block(*self.window(key_start))
        more_query, more_key, of_vectors = block.gradients(query, key, of_scores)
        return of_query + more_query, of_key + more_key, of_vectors

    def add_distance_gradient(self, total, of_block, key_start):
        """Adds the gradient of this block's distance vectors to `total`, as `columns`."""
        if total is None:
            return None
        start = self.request.distances.start(self.query_start, self.blocks.query, key_start)

        def add(total, update):
            current = jax.lax.dynamic_slice_in_dim(total, start, update.shape[2], 2)
            return jax.lax.dynamic_update_slice_in_dim(total, current + update, start, 2)

        vectors = replace(of_block, num_queries=total.num_queries)
        return jax.tree.map(add, total, vectors)

    def dropped(self, weights: jax.Array, key_start) -> jax.Array:
        """Applies dropout to the weights or their gradient."""
        if self.request.dropout is None:
            return weights
        factors_BNQS = self.request.dropout.factors(*self.window(key_start))
        return weights * _grouped(factors_BNQS, weights.shape[1])

    def add_bias_gradient(self, total, of_logits: jax.Array, key_start):
        """Adds this block's contribution to the gradient of the bias."""
        if total is None:
            return None
        batch, kv_heads, groups, *pairs = of_logits.shape
        of_values = of_logits.reshape(batch, kv_heads * groups, *pairs)
        return self.request.bias.add_gradient(total, of_values, *self.window(key_start))


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
    # XLA's CPU backend has no kernel for the product with a fused transpose.
    return jax.lax.optimization_barrier(_folded(rows_BKGQH).mT)


def columns_by_weights(columns_BKHX, weights_BKGQS):
    """`[B, K, H, G Q] x [B, K, G, Q, S] -> [B, K, H, S]`, summed over the group's queries."""
    # XLA's CPU backend computes this product twice as fast as the product of rows, whose contracted
    # axis is not the last.
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


def attend(query: jax.Array, key: jax.Array, value: jax.Array, request: Request) -> jax.Array:
    """Computes `attention` without the `[B, N, T, S]` probabilities in memory."""
    layout = Layout.of(query, key, request)
    query, request = scaled(query, request)
    output_BKGTH = _attend(
        layout.queries(query),
        layout.keys(key),
        layout.keys(value),
        layout.padded(request),
        blocks=layout.blocks,
    )
    return layout.outputs(output_BKGTH)


class Layout(NamedTuple):
    """The lengths of queries and keys, and the blocks to which they are padded."""

    query_length: int
    key_length: int
    num_kv_heads: int
    blocks: Blocks

    @classmethod
    def of(cls, query: jax.Array, key: jax.Array, request: Request) -> "Layout":
        """Returns the layout of `[B, T, N, H]` and `[B, S, K, H]`."""
        lengths, num_kv_heads = (query.shape[1], key.shape[1]), key.shape[2]
        return cls(*lengths, num_kv_heads, _block_sizes(*lengths, request.mask.grain(lengths[1])))

    @property
    def paddings(self) -> tuple[int, int]:
        """The padding of the queries, and that of the keys."""
        return -self.query_length % self.blocks.query, -self.key_length % self.blocks.key

    def queries(self, x: jax.Array) -> jax.Array:
        """`[B, T, N, H] -> [B, K, G, T', H]`."""
        batch, length, _, width = x.shape
        x_BTKGH = x.reshape(batch, length, self.num_kv_heads, -1, width)
        return _pad(x_BTKGH.transpose(0, 2, 3, 1, 4), 3, self.paddings[0])

    def keys(self, x: jax.Array) -> jax.Array:
        """`[B, S, K, H] -> [B, K, S', H]`."""
        return _pad(x.transpose(0, 2, 1, 3), 2, self.paddings[1])

    def outputs(self, x: jax.Array) -> jax.Array:
        """`[B, K, G, T', H] -> [B, T, N, H]`."""
        x_BTKGH = x[:, :, :, : self.query_length].transpose(0, 3, 1, 2, 4)
        return x_BTKGH.reshape(*x_BTKGH.shape[:2], -1, x.shape[-1])

    def padded(self, request: Request) -> Request:
        """Returns the request of the padded queries and keys."""
        mask = request.mask.padded(*self.paddings)
        if key_padding := self.paddings[1]:
            real = jnp.arange(self.key_length + key_padding)[None, :] < self.key_length
            mask = mask & KeyPadding(real)
        bias, vectors = (
            None if part is None else part.padded(*self.paddings)
            for part in (request.bias, request.distances)
        )
        return replace(request, mask=mask, bias=bias, distances=vectors)


def _block_sizes(query_length: int, key_length: int, grain: int) -> Blocks:
    """Returns the sizes that were fastest on a CPU: large, if masked blocks are still skipped."""
    largest = Blocks(min(max(grain, 128), 512), min(max(grain, 128), 256))
    return Blocks(_even(query_length, largest.query), _even(key_length, largest.key))


def _even(length: int, largest: int) -> int:
    """Returns a block size with little padding, a multiple of 64 if there are several blocks."""
    count = -(-length // largest)
    return length if count == 1 else -(-length // (64 * count)) * 64


def _pad(x: jax.Array, axis: int, padding: int) -> jax.Array:
    return jnp.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)])


def scaled(query: jax.Array, request: Request) -> tuple[jax.Array, Request]:
    """Multiplies the queries by the power of two in the scale; the rest stays in the request."""
    # This is exact. For heads with 16, 64 or 256 channels it is the whole scale, which saves a pass
    # over all logits.
    exact = 2.0 ** (math.frexp(request.scale)[1] - 1)
    vectors = request.distances
    if vectors is not None:
        vectors = vectors.scaled(exact)
    return query * exact, replace(request, scale=request.scale / exact, distances=vectors)


def _value(query_BKGTH, key_BKSH, value_BKSH, request, *, blocks):
    return _softmax(query_BKGTH, key_BKSH, value_BKSH, request, blocks)[0]


def _linearize(moves, *inputs, blocks):
    output, log_total = (saveable("attention_context", x) for x in _softmax(*inputs, blocks))
    return output, (*inputs, trained_array(inputs[3], moves[3]), output, log_total)


def _push(residuals, tangents, *, blocks):
    inputs = residuals[:4]
    return pushed(lambda *inputs: _softmax(*inputs, blocks)[0], inputs, tangents)


def _pull(residuals, cotangent, *, blocks):
    return gradients_by(_plain, partial(softmax_gradients, blocks), residuals, cotangent)


_attend = differentiable(_value, _linearize, _push, _pull)


def _softmax(query_BKGTH, key_BKSH, value_BKSH, request, blocks):
    """Returns the output and the log-sum-exp of each query."""

    # JAX does not support reverse mode through a loop of dynamic length, as over the unmasked
    # blocks.
    def plain(*inputs):
        # The log-sum-exp is a residual without a derivative.
        return _plain(*inputs), None

    softmax = reversed_by(plain, partial(softmax_blocks, blocks))
    return softmax(query_BKGTH, key_BKSH, value_BKSH, request)


def _plain(query_BKGTH, key_BKSH, value_BKSH, request):
    """Returns the output of the reference."""
    *_, length, width = query_BKGTH.shape
    query_BTNH = jnp.moveaxis(query_BKGTH, 3, 1).reshape(len(query_BKGTH), length, -1, width)
    key_BSKH = key_BKSH.swapaxes(1, 2)
    value_BSKH = value_BKSH.swapaxes(1, 2)
    output_BTNH = reference.attend(query_BTNH, key_BSKH, value_BSKH, request)
    shape_BTKGH = (len(query_BKGTH), length, *query_BKGTH.shape[1:3], -1)
    return jnp.moveaxis(output_BTNH.reshape(shape_BTKGH), 1, 3)


def softmax_blocks(blocks, query_BKGTH, key_BKSH, value_BKSH, request):
    """Returns the output `[B, K, G, T, H']` and the log-sum-exp of each query `[B, K, G, T]`."""
    *leading, length, _ = query_BKGTH.shape
    shape = (*leading, blocks.query)
    accumulator = jnp.promote_types(query_BKGTH.dtype, jnp.float32)
    sinks = jnp.full(shape, LOWEST, accumulator)
    if request.sinks is not None:
        sinks = jnp.broadcast_to(by_group(request.sinks, shape), shape).astype(accumulator)

    def query_block(index):
        tile = Tile(request, blocks, index * blocks.query)
        query = tile.rows(query_BKGTH)

        def visit(key_start, carry):
            highest, total, weighted = carry
            logits, allowed, _ = tile.logits(query, tile.keys(key_BKSH, key_start), key_start)
            # A shift of all logits does not change the result, so it has no derivative.
            level = jax.lax.stop_gradient(logits)
            new_highest = jnp.maximum(highest, jnp.max(level, -1, where=allowed, initial=LOWEST))
            weights = jnp.where(allowed, jnp.exp(logits - new_highest[..., None]), 0.0)
            shrink = jnp.exp(highest - new_highest)
            total = total * shrink + jnp.sum(weights, -1)
            dropped = tile.dropped(weights, key_start).astype(query.dtype)
            update = weights_by_values(dropped, tile.keys(value_BKSH, key_start))
            return new_highest, total, weighted * shrink[..., None] + update

        highest = jax.lax.stop_gradient(sinks)
        weighted = jnp.zeros((*shape, value_BKSH.shape[-1]), accumulator)
        start = highest, jnp.exp(sinks - highest), weighted
        highest, total, weighted = tile.over_keys(key_BKSH.shape[2], visit, start)
        return (weighted / total[..., None]).astype(query.dtype), highest + jnp.log(total)

    outputs = jax.lax.map(query_block, jnp.arange(length // blocks.query))
    return tuple(joined(blocks_of) for blocks_of in outputs)


def softmax_gradients(blocks, residuals, cotangent):
    """Returns the gradients of queries, keys, values, bias, distances and sinks."""
    # The log-sum-exp among the residuals may be one over further keys.
    query_BKGTH, key_BKSH, value_BKSH, request, trained_bias, output, log_total = residuals
    accumulator = log_total.dtype
    cotangent = cotangent.astype(query_BKGTH.dtype)
    # sum_s p_s dp_s of each query, known before any block is visited.
    delta = jnp.sum(output.astype(accumulator) * cotangent.astype(accumulator), axis=-1)

    def query_block(totals, index):
        tile = Tile(request, blocks, index * blocks.query)
        query = tile.rows(query_BKGTH)
        of_output = tile.rows(cotangent)
        query_BKHX = columns(query)
        of_output_BKHX = columns(of_output)
        shift = tile.rows(log_total)[..., None]
        correction = tile.rows(delta)[..., None]

        def visit(key_start, carry):
            of_query, of_key, of_value, of_bias, of_distances = carry
            key = tile.keys(key_BKSH, key_start)
            value = tile.keys(value_BKSH, key_start)
            logits, allowed, slope = tile.logits(query, key, key_start)
            weights = jnp.where(allowed, jnp.exp(logits - shift), 0.0)
            of_weights = tile.dropped(rows_by_keys(of_output, value), key_start)
            of_logits = weights * (of_weights - correction)
            of_scores = (of_logits * slope).astype(query.dtype)
            dropped = tile.dropped(weights, key_start).astype(query.dtype)
            of_block = tile.score_gradients(query, query_BKHX, key, of_scores, key_start)
            return (
                of_query + of_block[0],
                add_at(of_key, of_block[1], key_start),
                add_at(of_value, columns_by_weights(of_output_BKHX, dropped), key_start),
                tile.add_bias_gradient(of_bias, of_logits, key_start),
                tile.add_distance_gradient(of_distances, of_block[2], key_start),
            )

        start = (jnp.zeros(query.shape, accumulator), *totals)
        of_query, *totals = tile.over_keys(key_BKSH.shape[2], visit, start)
        return tuple(totals), of_query.astype(query.dtype)

    # The distances' vectors [C, N, H] as columns [N, H, C] of a matrix for each head.
    vectors = jax.tree.map(lambda x: x.transpose(1, 2, 0), request.distances)
    trained = (key_BKSH.mT, value_BKSH.mT, trained_bias, vectors)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, accumulator), trained)
    steps = jnp.arange(query_BKGTH.shape[3] // blocks.query)
    totals, of_query = jax.lax.scan(query_block, zeros, steps)
    totals = jax.tree.map(lambda g, x: g.astype(x.dtype), tuple(totals), trained)
    of_key, of_value, of_bias, of_vectors = totals
    of_distances = jax.tree.map(lambda x: x.transpose(2, 0, 1), of_vectors)
    of_sinks = sinks_gradient(request.sinks, log_total, delta)
    return joined(of_query), of_key.mT, of_value.mT, of_bias, of_distances, of_sinks


def by_group(sinks_N: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The sinks as `[1, K, G, 1]`, with more leading axes if `shape` `[..., K, G, T]` has more."""
    return sinks_N.reshape(*[1] * (len(shape) - 3), *shape[-3:-1], 1)


def sinks_gradient(sinks_N, log_total: jax.Array, delta: jax.Array) -> jax.Array | None:
    """Returns the gradient of the sinks, given `sum_s p_s dp_s` of each query, `[..., K, G, T]`."""
    if sinks_N is None:
        return None
    # A sink has no value: dp = 0.
    weights = jnp.exp(by_group(sinks_N, log_total.shape) - log_total)
    axes = (*range(log_total.ndim - 3), log_total.ndim - 1)
    return -jnp.sum(weights * delta, axes).reshape(-1).astype(sinks_N.dtype)


def gradients_by(plain: Callable, fast: Callable, residuals: tuple, cotangent) -> tuple:
    """Returns the gradients of queries, keys, values and request, by `fast`; in reverse by `plain`.

    `plain` maps the inputs, the first of the residuals, to the output; `fast` maps residuals and
    cotangent to the gradients of queries, keys, values, bias, distances and sinks.
    """

    def by_plain(residuals, cotangent):
        *inputs, request, trained_bias, _, _ = residuals

        def output(query, key, value, trained, vectors, sinks):
            bias = request.bias if trained is None else replace(request.bias, heads=trained)
            asked = replace(request, bias=bias, distances=vectors, sinks=sinks)
            return plain(query, key, value, asked)

        given = (*inputs, trained_bias, request.distances, request.sinks)
        return pulled(output, given, cotangent)

    found = reversed_by(by_plain, fast)(residuals, cotangent)
    *of_inputs, of_bias, of_distances, of_sinks = found
    request = residuals[3]
    if request.bias is not None:
        of_bias = replace(jax.tree.map(lambda _: None, request.bias), heads=of_bias)
    rest = {"mask": None, "dropout": None, "distances": of_distances, "sinks": of_sinks}
    return *of_inputs, replace(request, bias=of_bias, **rest)


def trained_array(request: Request, moves: Request) -> jax.Array | None:
    """Returns the array of a bias if it has a tangent, which ALiBi's slopes do not have."""
    return request.bias.heads if request.bias is not None and moves.bias.heads else None
