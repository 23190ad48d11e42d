"""Masks that follow from the indices of queries and keys alone."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxformer.checks import at_least, between
from jaxformer.functional.assertions import assert_axes, assert_integers, static
from jaxformer.functional.masks.base import AnyOf, Mask, spec

_FURTHEST = 1 << 30
# Sums of two of them, and of an index, stay within int32.
_INTEGER = between(-_FURTHEST, _FURTHEST)


def check_distance(mask: Mask, name: str) -> None:
    """Makes a distance in tokens a Python integer; None is unlimited."""
    if (value := getattr(mask, name)) is not None:
        object.__setattr__(mask, name, static(name, value, _INTEGER))


def _check_offset(mask: Mask) -> None:
    """Checks an offset, and makes a scalar a Python integer."""
    offset = mask.query_offset
    if getattr(offset, "shape", ()) == () and not isinstance(offset, jax.Array):
        object.__setattr__(mask, "query_offset", static("query_offset", offset, _INTEGER))
        return
    if offset.ndim:
        assert_axes(query_offset=(offset, "B"))
    assert_integers(query_offset=offset)


def _row(offset) -> jax.Array:
    """An offset, scalar or `[B]`, as `[B or 1, 1, 1]`."""
    return jnp.atleast_1d(jnp.asarray(offset))[:, None, None]


@spec
class Band(Mask):
    """Keys from `before` places before the query to `after` places after it; None is unlimited."""

    before: int | None = None
    after: int | None = None
    query_offset: int | jax.Array = 0

    def __post_init__(self):
        check_distance(self, "before")
        check_distance(self, "after")
        _check_offset(self)

    def values(self, query_length, key_length):
        query = jnp.arange(query_length)[None, :, None] + _row(self.query_offset)
        key = jnp.arange(key_length)[None, None, :]
        distance = key - query
        allowed = jnp.ones_like(distance, bool)
        if self.before is not None:
            allowed &= distance >= -self.before
        if self.after is not None:
            allowed &= distance <= self.after
        return allowed

    def block(self, query_start, query_size, key_start, key_size):
        offset = self.query_offset + query_start - key_start
        return dataclasses.replace(self, query_offset=offset)

    def key_bounds(self, query_length, key_length):
        low, high = 0, key_length
        if self.before is not None:
            low = jnp.clip(jnp.min(self.query_offset) - self.before, 0, key_length)
        if self.after is not None:
            last = jnp.max(self.query_offset) + query_length - 1
            high = jnp.clip(last + self.after + 1, 0, key_length)
        return low, high

    def grain(self, key_length):
        if self.before is None or self.after is None:
            return key_length if self.before is self.after else key_length // 4
        return min(key_length, self.before + self.after + 1) // 2


def causal(query_offset: int | jax.Array = 0) -> Band:
    """Causal attention: each query attends to itself and earlier keys, `key <= query + offset`.

    Args:
        query_offset: int or int `[B]`: the index of the first query among the keys. An integer is
            static, so each new value compiles again; give an array if it changes.

    Returns:
        The mask.
    """
    return Band(before=None, after=0, query_offset=query_offset)


def sliding_window(size: int, query_offset: int | jax.Array = 0) -> Band:
    """Causal attention to the last `size` keys, the query's own included (Mistral, 2023).

    Args:
        size: The number of keys, at least 1: `query - size < key <= query`.
        query_offset: int or int `[B]`: the index of the first query among the keys.

    Returns:
        The mask.
    """
    size = static("size", size, between(1, _FURTHEST))
    return Band(before=size - 1, after=0, query_offset=query_offset)


@spec
class Prefix(Mask):
    """Causal, but the first `lengths` keys of each row are visible to all (prefix LM, T5 2020).

    `lengths` is int `[B]`. A key `j` is allowed when `j <= query + query_offset` or `j < lengths`.
    """

    lengths: jax.Array
    query_offset: int | jax.Array = 0

    def __post_init__(self):
        assert_axes(lengths=(self.lengths, "B"))
        assert_integers(lengths=self.lengths)
        _check_offset(self)

    def values(self, query_length, key_length):
        key = jnp.arange(key_length)[None, None, :]
        past = causal(self.query_offset).values(query_length, key_length)
        return past | (key < _row(self.lengths))

    def block(self, query_start, query_size, key_start, key_size):
        return Prefix(self.lengths - key_start, self.query_offset + query_start - key_start)

    def key_bounds(self, query_length, key_length):
        _, high = causal(self.query_offset).key_bounds(query_length, key_length)
        return 0, jnp.clip(jnp.max(self.lengths), high, key_length)

    def grain(self, key_length):
        return causal().grain(key_length)


@spec
class BlockBand(Mask):
    """Keys of the blocks from `before` blocks before the query's to `after` blocks after it.

    Queries and keys lie in blocks of `block_size`, of which the first begins at index 0. The
    offsets are the indices of the first query and the first key.
    """

    block_size: int
    before: int = 1
    after: int = 1
    query_offset: int | jax.Array = 0
    key_offset: int | jax.Array = 0

    def __post_init__(self):
        size = static("block_size", self.block_size, between(1, _FURTHEST))
        object.__setattr__(self, "block_size", size)
        check_distance(self, "before")
        check_distance(self, "after")

    def values(self, query_length, key_length):
        query = (jnp.arange(query_length) + self.query_offset) // self.block_size
        key = (jnp.arange(key_length) + self.key_offset) // self.block_size
        distance = key[None, None, :] - query[None, :, None]
        return (distance >= -self.before) & (distance <= self.after)

    def block(self, query_start, query_size, key_start, key_size):
        query_offset, key_offset = self.query_offset + query_start, self.key_offset + key_start
        return dataclasses.replace(self, query_offset=query_offset, key_offset=key_offset)

    def key_bounds(self, query_length, key_length):
        first = self.query_offset // self.block_size - self.before
        last = (self.query_offset + query_length - 1) // self.block_size + self.after
        low, high = first * self.block_size, (last + 1) * self.block_size
        return tuple(jnp.clip(end - self.key_offset, 0, key_length) for end in (low, high))

    def grain(self, key_length):
        return min(key_length, (self.before + self.after + 1) * self.block_size) // 2


@spec
class KeyRange(Mask):
    """Keys `[start, stop)`, for every query: global tokens that all attend to."""

    start: int | jax.Array
    stop: int | jax.Array

    def values(self, query_length, key_length):
        key = jnp.arange(key_length)[None, None, :]
        shape = (1, query_length, key_length)
        return jnp.broadcast_to((key >= self.start) & (key < self.stop), shape)

    def block(self, query_start, query_size, key_start, key_size):
        return KeyRange(self.start - key_start, self.stop - key_start)

    def key_bounds(self, query_length, key_length):
        return tuple(jnp.clip(end, 0, key_length) for end in (self.start, self.stop))


@spec
class QueryRange(Mask):
    """Every key, for queries `[start, stop)`: global tokens that attend to all."""

    start: int | jax.Array
    stop: int | jax.Array

    def values(self, query_length, key_length):
        query = jnp.arange(query_length)[None, :, None]
        shape = (1, query_length, key_length)
        return jnp.broadcast_to((query >= self.start) & (query < self.stop), shape)

    def block(self, query_start, query_size, key_start, key_size):
        return QueryRange(self.start - query_start, self.stop - query_start)

    def key_bounds(self, query_length, key_length):
        some = jnp.maximum(self.start, 0) < jnp.minimum(self.stop, query_length)
        return jnp.where(some, 0, key_length), jnp.where(some, key_length, 0)


def block_sparse(length: int, block_size: int) -> Mask:
    """BigBird's attention without its random blocks, in blocks of tokens.

    Each block attends to itself and the blocks beside it. The first and the last block attend to
    all tokens, and all tokens to them.

    Args:
        length: The number of queries and of keys; the last block may be shorter than the others.
        block_size: Tokens of a block.

    Returns:
        The mask.

    References:
        Zaheer et al., Big Bird (https://arxiv.org/abs/2007.14062), section 2.
    """
    length = static("length", length, at_least(1))
    band = BlockBand(block_size)
    last = (length - 1) // band.block_size * band.block_size
    ends = ((0, band.block_size), (last, length))
    keys = (KeyRange(*end) for end in ends)
    queries = (QueryRange(*end) for end in ends)
    return AnyOf((band, *keys, *queries))
