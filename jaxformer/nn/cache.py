"""What a layer remembers of the tokens it has read, so that each is read once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.checks import check_types
from jaxformer.errors import check_field
from jaxformer.functional.assertions import assert_axes, assert_floating, assert_integers
from jaxformer.functional.placement import place, spec_of

Storage = Literal["float32", "bfloat16", "float16", "int8"]


@dataclass(frozen=True)
class CacheShape:
    """How much is to be remembered, and how."""

    batch_size: int
    """B: rows."""
    capacity: int
    """The most tokens of a row."""
    chunk: int
    """The most tokens that are read at once. A layer with a window of W keeps W - 1 + chunk."""
    storage: Storage
    """The numbers' type; "int8" has a float32 scale for every token and head besides."""
    spec: PartitionSpec | None = None
    """How arrays `[B, C, K, H]` lie on a mesh (a single head is whole); None without one."""

    def __post_init__(self):
        check_types(self)
        for name in ("batch_size", "capacity", "chunk"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")

    def slots(self, window: int | None) -> int:
        """C: the places for tokens in a layer with this window."""
        if window is None:
            return self.capacity
        return min(self.capacity, window - 1 + self.chunk)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Span:
    """The tokens of each row that one pass reads: those from `start` on, `count` of them.

    They are the first `count` of the pass; what follows them is padding. A ring of C slots keeps
    the token number p in slot p mod C.
    """

    start: jax.Array
    """int `[B]`: how many tokens were read before."""
    count: jax.Array
    """int `[B]`: how many of this pass are real."""

    @property
    def stop(self) -> jax.Array:
        """Int `[B]`: how many have been read after it."""
        return self.start + self.count

    def places(self, length: int) -> jax.Array:
        """Int `[B, T]`: the numbers of the tokens of the pass."""
        return self.start[:, None] + jnp.arange(length)[None, :]

    def slots(self, length: int, capacity: int) -> jax.Array:
        """Int `[B, T]`: where each is kept; beyond the last slot, which is nowhere, for padding."""
        places = self.places(length)
        order = places - self.start[:, None]
        return jnp.where(order < self.count[:, None], places % capacity, capacity + order)

    def held(self, capacity: int) -> jax.Array:
        """Int `[B, C]`: the number of the token in each slot after the pass; negative: none."""
        last = self.stop[:, None] - 1
        return last - (last - jnp.arange(capacity)[None, :]) % capacity


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CacheArray:
    """An array `[B, C, K, H]` in the type it is kept in."""

    values: jax.Array
    scales: jax.Array | None
    """float32 `[B, C, K, 1]` of int8 values; None: the values are what they say."""

    @classmethod
    def of(cls, x: jax.Array, storage: Storage) -> CacheArray:
        """Numbers `[B, C, K, H]` in another type.

        int8 keeps `round(x / s)` with `s = max |x| / 127` over a head.
        """
        if storage != "int8":
            return cls(x.astype(storage), None)
        x = x.astype(jnp.float32)
        scales = jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), 1e-30) / 127
        return cls(jnp.round(x / scales).astype(jnp.int8), scales)

    @property
    def storage(self) -> str:
        """The type."""
        return str(self.values.dtype)

    def read(self, dtype: jnp.dtype) -> jax.Array:
        """All of it, `[B, C, K, H]`."""
        if self.scales is None:
            return self.values.astype(dtype)
        return (self.values.astype(jnp.float32) * self.scales).astype(dtype)

    def write(self, slots: jax.Array, x: jax.Array) -> CacheArray:
        """With `x` `[B, T, K, H]` in the slots int `[B, T]`; those beyond the last are left out."""
        new = CacheArray.of(x, self.storage)
        return jax.tree.map(lambda old, part: _written(old, slots, part), self, new)

    def picked(self, chosen: jax.Array) -> CacheArray:
        """Of some rows, see `picked_rows`."""
        return jax.tree.map(lambda x: picked_rows(x, chosen), self)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValueCache:
    """The keys and values of one layer, of grouped heads once."""

    key: CacheArray
    value: CacheArray

    @classmethod
    def empty(cls, shape: CacheShape, slots: int, num_heads: int, head_dim: int) -> KeyValueCache:
        """A ring in which nothing is kept yet."""
        nothing = jnp.zeros((shape.batch_size, slots, num_heads, head_dim))
        return cls.of(nothing, nothing, shape)

    @classmethod
    def of(cls, key: jax.Array, value: jax.Array, shape: CacheShape) -> KeyValueCache:
        """Keys and values `[B, S, K, H]` as they are kept."""
        spec = shape.spec
        if spec is not None and key.shape[2] == 1:
            spec = PartitionSpec(spec[0], spec[1], None, spec[3])
        kept = [CacheArray.of(x, shape.storage) for x in (key, value)]
        return cls(*jax.tree.map(lambda x: place(x, spec), kept))

    @property
    def capacity(self) -> int:
        """C: the number of slots."""
        return self.key.values.shape[1]

    def read(self, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        """Keys and values, `[B, C, K, H]`."""
        return self.key.read(dtype), self.value.read(dtype)

    def write(self, key: jax.Array, value: jax.Array, span: Span) -> KeyValueCache:
        """With the keys and values `[B, T, K, H]` of a pass."""
        rows, _, heads, width = self.key.values.shape
        sizes = {"B": rows, "K": heads, "H": width}
        assert_axes(sizes, key=(key, "B T K H"), value=(value, "B T K _"))
        assert_floating(key=key, value=value)
        assert_axes(sizes, start=(span.start, "B"), count=(span.count, "B"))
        assert_integers(start=span.start, count=span.count)
        slots = span.slots(key.shape[1], self.capacity)
        return replace(self, key=self.key.write(slots, key), value=self.value.write(slots, value))

    def picked(self, chosen: jax.Array) -> KeyValueCache:
        """Of some rows, see `picked_rows`."""
        return replace(self, key=self.key.picked(chosen), value=self.value.picked(chosen))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MemoryCache(KeyValueCache):
    """Those of a memory, which stay as they are: one row for all that is written about it."""

    def picked(self, chosen: jax.Array) -> MemoryCache:
        """All of it: what is written in the place of a row has the same memory."""
        del chosen
        return self


def picked_rows(x: jax.Array, chosen: jax.Array) -> jax.Array:
    """Some rows of each group of them, on each device by itself.

    Args:
        x: `[B g, ...]`: B groups of g rows.
        chosen: int `[B, n]`: which of its group, in any order and number.

    Returns:
        `[B n, ...]`.
    """

    def pick(x, chosen):
        groups = chosen.shape[0]
        starts = jnp.arange(groups)[:, None] * (x.shape[0] // groups)
        return x[(starts + chosen).reshape(-1)]

    spec = spec_of(x)
    if spec is None:
        return pick(x, chosen)
    specs = (spec, PartitionSpec(spec[0], None))
    arguments = [place(array, each) for array, each in zip((x, chosen), specs, strict=True)]
    return jax.shard_map(pick, in_specs=specs, out_specs=spec, check_vma=False)(*arguments)


def _written(array: jax.Array, slots: jax.Array, new: jax.Array) -> jax.Array:
    """`array` `[B, C, ...]` with `new` `[B, T, ...]` in its slots, on each device by itself."""

    def write(array, slots, new):
        rows = jnp.arange(array.shape[0])[:, None]
        return array.at[rows, slots].set(new, mode="drop", unique_indices=True)

    spec = spec_of(array)
    if spec is None:
        return write(array, slots, new)
    specs = (spec, PartitionSpec(spec[0], None), spec)
    arguments = [place(x, each) for x, each in zip((array, slots, new), specs, strict=True)]
    return jax.shard_map(write, in_specs=specs, out_specs=spec, check_vma=False)(*arguments)
