"""Masks defined by arrays: padding, packed documents, positions, arbitrary patterns."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.functional.arrays import assert_axes, assert_integers, attended
from jaxformer.functional.masks.base import Mask, check_distance, spec, terms_of


def _assert_rows(query: jax.Array, key: jax.Array, lengths: Mapping[str, int] | None = None):
    """Asserts that `query` is `[B or 1, T]` and `key` `[B or 1, S]`."""
    assert_axes(lengths, query=(query, "_ T"), key=(key, "_ S"))
    # One row stands for all. A symbolic number of rows (jax.export) only supports !=: whether it is
    # > 1 cannot be decided, and broadcasting also assumes that it is not 1.
    rows = {"B": query.shape[0] if query.shape[0] != 1 else key.shape[0]}
    assert_axes(rows, query=(query, "B/1 T"), key=(key, "B/1 S"))


def _slice(x: jax.Array, axis: int, start, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _pad(x: jax.Array, axis: int, padding: int, value) -> jax.Array:
    widths = [(0, padding if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)


@spec
class KeyPadding(Mask):
    """Only real keys: `valid` is bool `[B, S]`, False (or 0) at padding, on either side."""

    valid: jax.Array

    def __post_init__(self):
        assert_axes(valid=(self.valid, "B S"))
        object.__setattr__(self, "valid", attended("valid", self.valid))

    def values(self, query_length, key_length):
        assert_axes({"S": key_length}, valid=(self.valid, "B S"))
        return jnp.broadcast_to(
            self.valid[:, None, :], (self.valid.shape[0], query_length, key_length)
        )

    def block(self, query_start, query_size, key_start, key_size):
        return KeyPadding(_slice(self.valid, 1, key_start, key_size))

    def padded(self, query_padding, key_padding):
        return KeyPadding(_pad(self.valid, 1, key_padding, False))

    def key_bounds(self, query_length, key_length):
        return _extent(jnp.any(self.valid, axis=0))


@spec
class Segments(Mask):
    """Packed documents: a query sees only keys of its own segment.

    `query` is int `[B, T]` and `key` int `[B, S]`; 0 marks padding, which is masked as query and as
    key.
    """

    query: jax.Array
    key: jax.Array

    def __post_init__(self):
        _assert_rows(self.query, self.key)
        assert_integers(query=self.query, key=self.key)

    def values(self, query_length, key_length):
        _assert_rows(self.query, self.key, {"T": query_length, "S": key_length})
        query = self.query[:, :, None]
        key = self.key[:, None, :]
        return (query == key) & (query > 0)

    def block(self, query_start, query_size, key_start, key_size):
        return Segments(
            _slice(self.query, 1, query_start, query_size), _slice(self.key, 1, key_start, key_size)
        )

    def padded(self, query_padding, key_padding):
        return Segments(_pad(self.query, 1, query_padding, 0), _pad(self.key, 1, key_padding, 0))

    def key_bounds(self, query_length, key_length):
        biggest = jnp.iinfo(self.query.dtype).max
        real = jnp.where(self.query > 0, self.query, biggest)
        low = real.min(axis=1, keepdims=True)
        high = self.query.max(axis=1, keepdims=True)
        return _extent(jnp.any((self.key >= low) & (self.key <= high), axis=0))


@spec
class PositionMask(Mask):
    """Keys at the query's position or up to `before` positions earlier, stored in any order.

    `query` is int `[B, T]` and `key` int `[B, S]`, the positions; negative marks an absent key.
    None for `before` means unlimited.
    """

    query: jax.Array
    key: jax.Array
    before: int | None = None

    def __post_init__(self):
        _assert_rows(self.query, self.key)
        assert_integers(query=self.query, key=self.key)
        check_distance(self, "before")

    def values(self, query_length, key_length):
        _assert_rows(self.query, self.key, {"T": query_length, "S": key_length})
        distance = self.query[:, :, None] - self.key[:, None, :]
        allowed = (self.key >= 0)[:, None, :] & (distance >= 0)
        return allowed if self.before is None else allowed & (distance <= self.before)

    def block(self, query_start, query_size, key_start, key_size):
        query = _slice(self.query, 1, query_start, query_size)
        return PositionMask(query, _slice(self.key, 1, key_start, key_size), self.before)

    def padded(self, query_padding, key_padding):
        query = _pad(self.query, 1, query_padding, -1)
        return PositionMask(query, _pad(self.key, 1, key_padding, -1), self.before)

    def key_bounds(self, query_length, key_length):
        used = (self.key >= 0) & (self.key <= jnp.max(self.query, axis=1, keepdims=True))
        if self.before is not None:
            used &= self.key >= jnp.min(self.query, axis=1, keepdims=True) - self.before
        return _extent(jnp.any(used, axis=0))


@spec
class DenseMask(Mask):
    """Any pattern: `allowed` is bool `[B or 1, T, S]`, True (or 1) = attend."""

    allowed: jax.Array

    def __post_init__(self):
        assert_axes(allowed=(self.allowed, "B T S"))
        object.__setattr__(self, "allowed", attended("allowed", self.allowed))

    def values(self, query_length, key_length):
        assert_axes({"T": query_length, "S": key_length}, allowed=(self.allowed, "B T S"))
        return jnp.asarray(self.allowed)

    def block(self, query_start, query_size, key_start, key_size):
        rows = _slice(self.allowed, 1, query_start, query_size)
        return DenseMask(_slice(rows, 2, key_start, key_size))

    def padded(self, query_padding, key_padding):
        rows = _pad(self.allowed, 1, query_padding, False)
        return DenseMask(_pad(rows, 2, key_padding, False))

    def key_bounds(self, query_length, key_length):
        return _extent(jnp.any(self.allowed, axis=(0, 1)))


def dense_mask(mask: jax.Array, sizes: Mapping[str, int]) -> DenseMask:
    """Returns the mask of an array `[T, S]`, `[B or 1, T, S]` or `[B or 1, 1, T, S]`."""
    given = isinstance(mask, jax.Array | np.ndarray)
    check_argument("mask", mask, given, "a mask such as causal(), or a bool array [B or 1, T, S]")
    axes = {2: "T S", 4: "B/1 1 T S"}.get(mask.ndim, "B/1 T S")
    assert_axes(sizes, mask=(mask, axes))
    mask = mask[None] if mask.ndim == 2 else mask
    return DenseMask(attended("mask", mask[:, 0] if mask.ndim == 4 else mask))


def real_tokens(mask: Mask) -> jax.Array | None:
    """Returns the tokens that a mask does not make padding, bool `[B or 1, T]`, or None for all."""
    real = None
    for term in terms_of(mask):
        if isinstance(term, KeyPadding | Segments):
            own = term.valid if isinstance(term, KeyPadding) else term.key > 0
            real = own if real is None else real & own
    return real


def _extent(used: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the index of the first True and one past the last, or an empty range."""
    index = jnp.arange(used.shape[0])
    low = jnp.min(jnp.where(used, index, used.shape[0]))
    return low, jnp.max(jnp.where(used, index + 1, low))
