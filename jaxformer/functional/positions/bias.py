"""Additive biases of attention: those of a positional scheme, and those of an array."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.functional.arrays import check_result


class Scores(Protocol):
    """The interface of schemes that turn positions into an additive bias: ALiBi, T5's buckets."""

    def score(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Returns the bias of every pair, [B or 1, N, T, S] float32."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bias:
    """A lazy additive attention bias, `score(q, k)` per head.

    Attributes:
        heads: [..., N] per-head values (slopes, or a learned table); the last axis is the heads,
            which may be sharded. Gradients flow to it.
        query_positions: [B or 1, T] integer positions, or a tree of such arrays.
        key_positions: [B or 1, S] integer positions, or a tree of such arrays.
        scheme: The scheme whose `score` turns these into numbers.
    """

    heads: jax.Array
    query_positions: jax.Array
    key_positions: jax.Array
    scheme: Scores = field(metadata={"static": True})

    def values(self) -> jax.Array:
        """Materializes the bias, [B or 1, N, T, S] float32."""
        bias = self.scheme.score(self.heads, self.query_positions, self.key_positions)
        sides = self.query_positions, self.key_positions
        lengths = [jax.tree.leaves(side)[0].shape[1] for side in sides]
        rows = bias.shape[:1] if getattr(bias, "ndim", 0) == 4 else (1,)
        shape = (*rows, self.heads.shape[-1], *lengths)
        check_result(self.scheme, bias, jax.ShapeDtypeStruct(shape, jnp.float32))
        return bias

    def block(
        self,
        query_start: jax.Array | int,
        query_size: int,
        key_start: jax.Array | int,
        key_size: int,
    ) -> "Bias":
        """Returns the bias of a window of queries and keys, for blockwise attention.

        Args:
            query_start: Index (not position) of the first query; may be traced.
            query_size: Number of queries.
            key_start: Index of the first key; may be traced.
            key_size: Number of keys.

        Returns:
            A Bias whose `values()` is [B or 1, N, query_size, key_size].
        """

        def window(start, size):
            return lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, axis=1)

        return self._mapped(window(query_start, query_size), window(key_start, key_size))

    def padded(self, queries: int, keys: int) -> "Bias":
        """Returns the bias with this many more queries and keys, whose values are arbitrary."""

        def padding(count):
            return lambda x: jnp.pad(x, ((0, 0), (0, count)))

        return self._mapped(padding(queries), padding(keys))

    def add_gradient(self, total: jax.Array, of_values: jax.Array, *window) -> jax.Array:
        """Adds the gradient of a window's values, `[B, N, T, S]`, to the gradient of `heads`."""
        block = self.block(*window)
        values, pull = jax.vjp(lambda heads: replace(block, heads=heads).values(), self.heads)
        of_heads = pull(_summed_to(of_values, values.shape).astype(values.dtype))[0]
        return total + of_heads.astype(total.dtype)

    def partition_specs(self, rows: Callable, heads) -> "Bias":
        """Returns the specs of its arrays: `rows` of those of positions, and `heads` of N."""
        return replace(
            self._mapped(rows, rows),
            heads=PartitionSpec(*[None] * (self.heads.ndim - 1), heads),
        )

    def _mapped(self, of_queries: Callable, of_keys: Callable) -> "Bias":
        return replace(
            self,
            query_positions=jax.tree.map(of_queries, self.query_positions),
            key_positions=jax.tree.map(of_keys, self.key_positions),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DenseBias:
    """The attention bias of an array, with the interface of `Bias`.

    Attributes:
        heads: `[B or 1, N or 1, T, S]`: the values. Gradients flow to them.
    """

    heads: jax.Array

    def values(self) -> jax.Array:
        """Returns the array."""
        return self.heads

    def block(self, query_start, query_size: int, key_start, key_size: int) -> "DenseBias":
        """Returns the bias of a window of queries and keys."""
        rows = jax.lax.dynamic_slice_in_dim(self.heads, query_start, query_size, axis=2)
        return DenseBias(jax.lax.dynamic_slice_in_dim(rows, key_start, key_size, axis=3))

    def padded(self, queries: int, keys: int) -> "DenseBias":
        """Returns the bias with this many more queries and keys, whose values are 0."""
        return DenseBias(jnp.pad(self.heads, ((0, 0), (0, 0), (0, queries), (0, keys))))

    def add_gradient(self, total, of_values, query_start, query_size, key_start, key_size):
        """Adds the gradient of a window's values, `[B, N, T, S]`, at their places."""
        update = _summed_to(of_values, (*total.shape[:2], query_size, key_size))
        start = (0, 0, query_start, key_start)
        current = jax.lax.dynamic_slice(total, start, update.shape)
        return jax.lax.dynamic_update_slice(total, current + update, start)

    def partition_specs(self, rows: Callable, heads) -> "DenseBias":
        """Returns the spec of the array: `rows` of it, and `heads` of N."""
        own = heads if self.heads.shape[1] > 1 else None
        return DenseBias(PartitionSpec(rows(self.heads)[0], own, None, None))


def _summed_to(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sums `x` over the axes that `shape` broadcasts."""
    if shape[0] < x.shape[0]:
        x = _pairwise_sum(x)
    axes = [axis for axis, size in enumerate(shape) if size < x.shape[axis]]
    return jnp.sum(x, axes, keepdims=True)


def _pairwise_sum(x: jax.Array) -> jax.Array:
    """Sums `[B, ...]` to `[1, ...]`, forty times faster than `sum` on XLA's CPU backend."""
    while (count := x.shape[0]) > 1:
        half = count // 2
        x = jnp.concatenate([x[:half] + x[half : 2 * half], x[2 * half :]])
    return x
