"""Mask specs: lazy descriptions of which keys each query may attend to.

A spec is a small frozen pytree whose arrays all have a leading batch axis. Specs combine with `&`
and `|`. `values` materializes `[B or 1, T, S]` booleans (True = attend); `block` describes a window
of the same mask; `key_bounds` and `key_blocks` tell which keys a kernel may skip. Queries and keys
are identified by their index in the arrays; `query_offset` is the index of the first query among
the keys (such as the length of a cache), so T and S may differ.
"""
# long: masks and their combinations refer to each other

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import at_least, between, check_argument
from jaxformer.functional.arrays import assert_axes, assert_integers, static


@dataclass(frozen=True)
class Mask:
    """The mask that allows everything, and the interface of all others."""

    __array_ufunc__ = None  # otherwise NumPy would apply `array & mask` elementwise

    def __and__(self, other: Mask) -> Mask:
        """Returns the intersection: a pair is allowed if both masks allow it.

        Bands whose offsets are known while tracing become one.
        """
        _check_mask(other)
        terms = (*terms_of(self), *terms_of(other))
        bands = [term for term in terms if _is_fixed_band(term)]
        if len(bands) > 1:
            others = (term for term in terms if not _is_fixed_band(term))
            terms = (_intersection(bands), *others)
        return terms[0] if len(terms) == 1 else All(terms)

    def __or__(self, other: Mask) -> Mask:
        """Returns the union: a pair is allowed if either mask allows it."""
        _check_mask(other)
        return AnyOf((*choices_of(self), *choices_of(other)))

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

    @property
    def has_gaps(self) -> bool:
        """Whether keys between the bounds may be excluded for all queries; see `key_blocks`."""
        return False

    @property
    def grows(self) -> bool:
        """Whether later queries read more keys, as in a causal mask."""
        return False

    def key_blocks(self, query_length: int, key_length: int, size: int) -> jax.Array:
        """Returns which blocks of `size` keys contain an allowed key, bool `[blocks]`."""
        low, high = self.key_bounds(query_length, key_length)
        start = jnp.arange(0, key_length, size)
        return (start < high) & (start + size > low) & (low < high)

    def grain(self, key_length: int) -> int:
        """Returns the largest block size for which most masked pairs are skipped."""
        return key_length


def terms_of(mask: Mask) -> tuple[Mask, ...]:
    """Returns the masks whose intersection is `mask`; none if it allows everything."""
    if isinstance(mask, All):
        return mask.terms
    return () if type(mask) is Mask else (mask,)


def choices_of(mask: Mask) -> tuple[Mask, ...]:
    """Returns the masks whose union is `mask`."""
    return mask.choices if isinstance(mask, AnyOf) else (mask,)


def _check_mask(other: Mask) -> None:
    wanted = "a mask; write DenseMask(array) for an array [B or 1, T, S]"
    check_argument("other", other, isinstance(other, Mask), wanted)


def spec(cls):
    """Makes `cls` a frozen dataclass and a pytree whose leaves are its arrays."""
    # Python integers and None belong to the tree's structure, so an offset that is known while
    # tracing stays known inside `jit`, `scan` and `shard_map`, where kernels need it. Unflattening
    # skips the checks of `__post_init__`, because JAX puts placeholders in the place of arrays.
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


@spec
class All(Mask):
    """The intersection of several masks, created by `&`."""

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

    @property
    def has_gaps(self):
        return any(term.has_gaps for term in self.terms)

    @property
    def grows(self):
        return any(term.grows for term in self.terms)

    def key_blocks(self, query_length, key_length, size):
        blocks = (term.key_blocks(query_length, key_length, size) for term in self.terms)
        return reduce(jnp.logical_and, blocks, super().key_blocks(query_length, key_length, size))

    def grain(self, key_length):
        return min((term.grain(key_length) for term in self.terms), default=key_length)


@spec
class AnyOf(Mask):
    """The union of several masks, created by `|`."""

    choices: tuple[Mask, ...]

    def values(self, query_length, key_length):
        values = (choice.values(query_length, key_length) for choice in self.choices)
        return reduce(jnp.logical_or, values)

    def block(self, query_start, query_size, key_start, key_size):
        window = (query_start, query_size, key_start, key_size)
        return AnyOf(tuple(choice.block(*window) for choice in self.choices))

    def padded(self, query_padding, key_padding):
        return AnyOf(tuple(choice.padded(query_padding, key_padding) for choice in self.choices))

    def key_bounds(self, query_length, key_length):
        bounds = [choice.key_bounds(query_length, key_length) for choice in self.choices]
        low = reduce(jnp.minimum, (low for low, _ in bounds))
        return low, reduce(jnp.maximum, (high for _, high in bounds))

    @property
    def has_gaps(self):
        return True

    @property
    def grows(self):
        return any(choice.grows for choice in self.choices)

    def key_blocks(self, query_length, key_length, size):
        blocks = (choice.key_blocks(query_length, key_length, size) for choice in self.choices)
        return reduce(jnp.logical_or, blocks)

    def grain(self, key_length):
        return min(choice.grain(key_length) for choice in self.choices)


_FURTHEST = 1 << 30
# Sums of two distances and an index stay within int32.
_INTEGER = between(-_FURTHEST, _FURTHEST)


def check_distance(mask: Mask, name: str) -> None:
    """Converts a distance in tokens to a Python integer; None means unlimited."""
    if (value := getattr(mask, name)) is not None:
        object.__setattr__(mask, name, static(name, value, _INTEGER))


def _check_offset(mask: Mask) -> None:
    """Checks an offset and converts a scalar to a Python integer."""
    offset = mask.query_offset
    if getattr(offset, "shape", ()) == () and not isinstance(offset, jax.Array):
        object.__setattr__(mask, "query_offset", static("query_offset", offset, _INTEGER))
        return
    if offset.ndim:
        assert_axes(query_offset=(offset, "B"))
    assert_integers(query_offset=offset)


def _row(offset) -> jax.Array:
    """Reshapes an offset, scalar or `[B]`, to `[B or 1, 1, 1]`."""
    return jnp.atleast_1d(jnp.asarray(offset))[:, None, None]


@spec
class Band(Mask):
    """Keys from `before` positions before the query to `after` positions after it; None is
    unlimited.
    """

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

    @property
    def grows(self):
        return self.before is None and self.after is not None

    def grain(self, key_length):
        if self.before is None or self.after is None:
            return key_length if self.before is self.after else key_length // 4
        return min(key_length, self.before + self.after + 1) // 2


def _is_fixed_band(mask: Mask) -> bool:
    return isinstance(mask, Band) and isinstance(mask.query_offset, int)


def _intersection(bands: list[Band]) -> Band:
    """The pairs in all of several bands with fixed offsets, as one without an offset."""
    before = [band.before - band.query_offset for band in bands if band.before is not None]
    after = [band.after + band.query_offset for band in bands if band.after is not None]
    return Band(min(before, default=None), min(after, default=None))


def causal(query_offset: int | jax.Array = 0) -> Band:
    """Causal attention: each query attends to itself and earlier keys, `key <= query + offset`.

    Args:
        query_offset: int or int `[B]`: the index of the first query among the keys. An integer is
            static, so each new value recompiles; pass an array if it changes.

    Returns:
        The mask.
    """
    return Band(before=None, after=0, query_offset=query_offset)


def sliding_window(size: int, query_offset: int | jax.Array = 0) -> Band:
    """Causal attention to the last `size` keys, including the query's position (Mistral, 2023).

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
    """Causal, but the first `lengths` keys of each row are visible to all queries (prefix LM, T5
    2020).

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

    @property
    def grows(self):
        return True

    def grain(self, key_length):
        return causal().grain(key_length)


@spec
class BlockBand(Mask):
    """Keys in the blocks from `before` blocks before the query's block to `after` blocks after it.

    Queries and keys are divided into blocks of `block_size`, starting at index 0. The offsets are
    the indices of the first query and the first key.
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
        query_offset = self.query_offset + query_start
        key_offset = self.key_offset + key_start
        return dataclasses.replace(self, query_offset=query_offset, key_offset=key_offset)

    def key_bounds(self, query_length, key_length):
        first = self.query_offset // self.block_size - self.before
        last = (self.query_offset + query_length - 1) // self.block_size + self.after
        low = first * self.block_size
        high = (last + 1) * self.block_size
        return tuple(jnp.clip(end - self.key_offset, 0, key_length) for end in (low, high))

    def grain(self, key_length):
        return min(key_length, (self.before + self.after + 1) * self.block_size) // 2


@spec
class KeyRange(Mask):
    """Keys `[start, stop)` for every query: global tokens that all tokens attend to."""

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
    """BigBird's block-sparse attention without random blocks.

    Each block attends to itself and the adjacent blocks. The first and the last block attend to all
    tokens, and all tokens attend to them.

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
