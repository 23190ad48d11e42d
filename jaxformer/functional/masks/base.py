"""Mask specs: which key each query may attend to, described rather than materialised.

A spec is a small frozen object, a pytree whose arrays all have a leading batch axis. Specs
combine with `&` and `|`. `values` materialises `[B or 1, T, S]` booleans (True = attend); `block`
describes a window of the same mask; `key_bounds` and `key_blocks` tell which keys a kernel may
skip. Queries and keys are counted by their index in the arrays; `query_offset` is how far the
first query sits after the first key (the length of a cache, say), so nothing assumes that T == S.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import check_argument


@dataclass(frozen=True)
class Mask:
    """The mask that allows everything, and the interface of all others."""

    __array_ufunc__ = None  # or NumPy would take `array & mask` element by element

    def __and__(self, other: Mask) -> Mask:
        """The intersection: a pair is allowed when both masks allow it."""
        _check_mask(other)
        return All((*terms_of(self), *terms_of(other)))

    def __or__(self, other: Mask) -> Mask:
        """The union: a pair is allowed when one of the masks allows it."""
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

    def key_blocks(self, query_length: int, key_length: int, size: int) -> jax.Array:
        """Which blocks of `size` keys hold one that some query may attend to, bool `[blocks]`."""
        low, high = self.key_bounds(query_length, key_length)
        start = jnp.arange(0, key_length, size)
        return (start < high) & (start + size > low) & (low < high)

    def grain(self, key_length: int) -> int:
        """Returns the largest block size with which most of the excluded pairs are skipped."""
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


@spec
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

    @property
    def has_gaps(self):
        return any(term.has_gaps for term in self.terms)

    def key_blocks(self, query_length, key_length, size):
        blocks = (term.key_blocks(query_length, key_length, size) for term in self.terms)
        return reduce(jnp.logical_and, blocks, super().key_blocks(query_length, key_length, size))

    def grain(self, key_length):
        return min((term.grain(key_length) for term in self.terms), default=key_length)


@spec
class AnyOf(Mask):
    """The union of several masks, as `|` makes it."""

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

    def key_blocks(self, query_length, key_length, size):
        blocks = (choice.key_blocks(query_length, key_length, size) for choice in self.choices)
        return reduce(jnp.logical_or, blocks)

    def grain(self, key_length):
        return min(choice.grain(key_length) for choice in self.choices)
