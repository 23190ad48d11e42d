"""Mask specs: which key each query may attend to, described rather than materialised.

A spec is a small frozen object, a pytree whose arrays all have a leading batch axis. Specs
combine with `&`. `values` materialises `[B or 1, T, S]` booleans (True = attend); `block`
describes a window of the same mask; `key_bounds` tells which keys a kernel may skip. Queries and
keys are counted by their index in the arrays; `query_offset` is how far the first query sits
after the first key (the length of a cache, say), so nothing assumes that T == S.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import Rule, at_least, is_integer
from jaxformer.errors import check_argument
from jaxformer.functional.assertions import assert_axes, assert_integers, attended, static


@dataclass(frozen=True)
class Mask:
    """The mask that allows everything, and the interface of all others."""

    __array_ufunc__ = None  # or NumPy would take `array & mask` element by element

    def __and__(self, other: Mask) -> Mask:
        """The intersection: a pair is allowed when both masks allow it."""
        wanted = "a mask; write DenseMask(array) for an array [B or 1, T, S]"
        check_argument("other", other, isinstance(other, Mask), wanted)
        return All((*terms_of(self), *terms_of(other)))

    def values(self, query_length: int, key_length: int) -> jax.Array:
        """Materialises the mask: bool `[B or 1, T, S]`, True = attend."""
        return jnp.ones((1, query_length, key_length), bool)

    def block(self, query_start, query_size: int, key_start, key_size: int) -> Mask:
        """The mask of queries `[query_start, +query_size)` and keys `[key_start, +key_size)`."""
        return self

    def padded(self, query_padding: int, key_padding: int) -> Mask:
        """The same mask for arrays padded at their ends; padded pairs are unspecified."""
        return self

    def key_bounds(self, query_length: int, key_length: int) -> tuple:
        """`(low, high)` such that no query attends to a key outside `[low, high)`."""
        return 0, key_length

    def grain(self, key_length: int) -> int:
        """Returns the largest block size with which most of the excluded pairs are skipped."""
        return key_length


def terms_of(mask: Mask) -> tuple[Mask, ...]:
    """Returns the masks whose intersection is `mask`; none if it allows everything."""
    if isinstance(mask, All):
        return mask.terms
    return () if type(mask) is Mask else (mask,)


def _spec(cls):
    """Makes `cls` a frozen dataclass and a pytree whose leaves are its arrays.

    Python integers and None belong to the tree's structure, so an offset that is known while
    tracing stays known inside `jit`, `scan` and `shard_map`, where kernels need it. Unflattening
    skips the checks of `__post_init__`, because JAX puts placeholders in the place of arrays.

    Returns:
        The class.
    """
    cls = dataclass(frozen=True)(cls)
    names = [field.name for field in dataclasses.fields(cls)]

    def flatten(mask):
        values = [getattr(mask, name) for name in names]
        static = tuple(value if _is_static(value) else ... for value in values)
        keyed = zip(map(jax.tree_util.GetAttrKey, names), values, strict=True)
        return [(key, value) for key, value in keyed if not _is_static(value)], static

    def unflatten(static, leaves):
        leaves, mask = iter(leaves), object.__new__(cls)
        for name, value in zip(names, static, strict=True):
            object.__setattr__(mask, name, next(leaves) if value is ... else value)
        return mask

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def _is_static(value) -> bool:
    return value is None or isinstance(value, int | np.integer)


jax.tree_util.register_dataclass(Mask, data_fields=(), meta_fields=())


_INTEGER = Rule(is_integer, "an integer")


def _check_distance(mask: Mask, name: str) -> None:
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


def _assert_rows(query: jax.Array, key: jax.Array, lengths: Mapping[str, int] | None = None):
    """Asserts that `query` is `[B or 1, T]` and `key` `[B or 1, S]`."""
    assert_axes(lengths, query=(query, "_ T"), key=(key, "_ S"))
    rows = {"B": query.shape[0] if query.shape[0] > 1 else key.shape[0]}
    assert_axes(rows, query=(query, "B/1 T"), key=(key, "B/1 S"))


def _row(offset) -> jax.Array:
    """An offset, scalar or `[B]`, as `[B or 1, 1, 1]`."""
    return jnp.atleast_1d(jnp.asarray(offset))[:, None, None]


def _slice(x: jax.Array, axis: int, start, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _pad(x: jax.Array, axis: int, padding: int, value) -> jax.Array:
    widths = [(0, padding if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)


@_spec
class All(Mask):
    """The intersection of several masks, as `&` makes it."""

    terms: tuple[Mask, ...]

    def values(self, query_length, key_length):
        values = (term.values(query_length, key_length) for term in self.terms)
        return reduce(jnp.logical_and, values, super().values(query_length, key_length))

    def block(self, query_start, query_size, key_start, key_size):
        window = (query_start, query_size, key_start, key_size)
        return All(tuple(term.block(*window) for term in self.terms))

    def padded(self, query_padding, key_padding):
        return All(tuple(term.padded(query_padding, key_padding) for term in self.terms))

    def key_bounds(self, query_length, key_length):
        bounds = [term.key_bounds(query_length, key_length) for term in self.terms]
        low = reduce(jnp.maximum, (low for low, _ in bounds), 0)
        return low, reduce(jnp.minimum, (high for _, high in bounds), key_length)

    def grain(self, key_length):
        return min((term.grain(key_length) for term in self.terms), default=key_length)


@_spec
class Band(Mask):
    """Keys from `before` places before the query to `after` places after it; None is unlimited."""

    before: int | None = None
    after: int | None = None
    query_offset: int | jax.Array = 0

    def __post_init__(self):
        _check_distance(self, "before")
        _check_distance(self, "after")
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
    size = static("size", size, at_least(1))
    return Band(before=size - 1, after=0, query_offset=query_offset)


@_spec
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


@_spec
class KeyPadding(Mask):
    """Only real keys: `valid` is bool `[B, S]`, False (or 0) at padding, on whichever side."""

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


@_spec
class Segments(Mask):
    """Packed documents: a query sees only keys of its own segment.

    `query` is int `[B, T]` and `key` int `[B, S]`; 0 marks padding, which sees nothing and is
    seen by nothing.
    """

    query: jax.Array
    key: jax.Array

    def __post_init__(self):
        _assert_rows(self.query, self.key)
        assert_integers(query=self.query, key=self.key)

    def values(self, query_length, key_length):
        _assert_rows(self.query, self.key, {"T": query_length, "S": key_length})
        query, key = self.query[:, :, None], self.key[:, None, :]
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
        low, high = real.min(axis=1, keepdims=True), self.query.max(axis=1, keepdims=True)
        return _extent(jnp.any((self.key >= low) & (self.key <= high), axis=0))


@_spec
class PositionMask(Mask):
    """Keys at the query's position or up to `before` positions earlier, stored in any order.

    `query` is int `[B, T]` and `key` int `[B, S]`: their positions; negative marks an absent key.
    `before` None is unlimited.
    """

    query: jax.Array
    key: jax.Array
    before: int | None = None

    def __post_init__(self):
        _assert_rows(self.query, self.key)
        assert_integers(query=self.query, key=self.key)
        _check_distance(self, "before")

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


@_spec
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


def _extent(used: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the index of the first True and one past the last; an empty range without any."""
    index = jnp.arange(used.shape[0])
    low = jnp.min(jnp.where(used, index, used.shape[0]))
    return low, jnp.max(jnp.where(used, index + 1, low))
