"""The cache of a decoder: the keys and values of the tokens that it has read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.checks import check_field, check_types
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    place,
    spec_of,
)
from jaxformer.functional.masks import Mask

Storage = Literal["float32", "bfloat16", "float16", "int8"]


@dataclass(frozen=True)
class CacheShape:
    """The size of a cache, its dtype and its sharding."""

    batch_size: int
    """Rows (B)."""
    capacity: int
    """The maximum length of a row."""
    chunk: int
    """The maximum number of tokens that one pass reads. A layer with a window of W has W - 1 +
    chunk slots."""
    storage: Storage
    """The dtype; "int8" adds a float32 scale for each token and head."""
    spec: PartitionSpec | None = None
    """The sharding of arrays `[B, C, K, H]`, where a single head is replicated; None without a
    mesh."""

    def __post_init__(self):
        check_types(self)
        for name in ("batch_size", "capacity", "chunk"):
            check_field(self, name, getattr(self, name) >= 1, "at least 1")

    def zeros(self, *sizes: int) -> jax.Array:
        """Zeros `[B, *sizes]`, float32: the state of a sublayer that keeps no keys and values."""
        rows = None if self.spec is None else PartitionSpec(self.spec[0])
        return place(jnp.zeros((self.batch_size, *sizes)), rows)

    def slots(self, window: int | None) -> int:
        """The number of slots (C) of a layer with this window."""
        if window is None:
            return self.capacity
        return min(self.capacity, window - 1 + self.chunk)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chunk:
    """The tokens of each row that one pass reads: `count` of them, from position `start`.

    Of the T tokens of the pass, the first `count` are real and the rest are padding. A layer with C
    slots is a ring buffer: the token at position p is in slot p mod C.
    """

    start: jax.Array
    """int `[B]`: the number of tokens that were read before."""
    count: jax.Array
    """int `[B]`: the number of real tokens in this pass."""

    @property
    def stop(self) -> jax.Array:
        """Int `[B]`: the number of tokens that have been read after this pass."""
        return self.start + self.count

    def positions(self, length: int) -> jax.Array:
        """Int `[B, T]`: the positions of the tokens."""
        return self.start[:, None] + jnp.arange(length)[None, :]

    def slots(self, length: int, capacity: int) -> jax.Array:
        """Int `[B, T]`: the slot of each token; out of bounds for padding, which is dropped."""
        positions_BT = self.positions(length)
        order_BT = positions_BT - self.start[:, None]
        return jnp.where(self.is_real(length), positions_BT % capacity, capacity + order_BT)

    def is_real(self, length: int) -> jax.Array:
        """Bool `[B, T]`: which tokens are real; the others are padding."""
        return jnp.arange(length)[None, :] < self.count[:, None]

    def carried(self, state: Any) -> Any:
        """A tree of states `[B, ...]` from before the pass, zero for the rows that begin."""

        def carried(x):
            begins = self.start == 0
            return jnp.where(jnp.expand_dims(begins, tuple(range(1, x.ndim))), 0, x)

        return jax.tree.map(carried, state)

    def slot_positions(self, capacity: int) -> jax.Array:
        """Int `[B, C]`: the position of the token in each slot after the pass; negative if none."""
        last = self.stop[:, None] - 1
        return last - (last - jnp.arange(capacity)[None, :]) % capacity


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CacheArray:
    """An array `[B, C, K, H]` in the dtype of the cache."""

    values: jax.Array
    scales: jax.Array | None
    """float32 `[B, C, K, 1]` for int8 values; None for other dtypes."""

    @classmethod
    def of(cls, x: jax.Array, storage: Storage) -> CacheArray:
        """Converts `[B, C, K, H]` to the dtype of the cache.

        int8 stores `round(x / s)` with `s = max |x| / 127` over a head.

        Args:
            x: The array.
            storage: The dtype.

        Returns:
            The array in that dtype.
        """
        if storage != "int8":
            return cls(x.astype(storage), None)
        x = x.astype(jnp.float32)
        scales = jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), 1e-30) / 127
        return cls(jnp.round(x / scales).astype(jnp.int8), scales)

    @property
    def storage(self) -> str:
        """The dtype."""
        return str(self.values.dtype)

    def read(self, dtype: jnp.dtype) -> jax.Array:
        """The whole array `[B, C, K, H]` in `dtype`."""
        if self.scales is None:
            return self.values.astype(dtype)
        return (self.values.astype(jnp.float32) * self.scales).astype(dtype)

    def write(self, slots: jax.Array, x: jax.Array) -> CacheArray:
        """Writes `x` `[B, T, K, H]` to the slots int `[B, T]`; drops those out of bounds."""
        new = CacheArray.of(x, self.storage)
        return jax.tree.map(lambda old, part: _write(old, slots, part), self, new)

    def reorder(self, beams: jax.Array) -> CacheArray:
        """Selects rows, see `reorder_rows`."""
        return jax.tree.map(lambda x: reorder_rows(x, beams), self)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValueCache:
    """The keys `[B, C, K, H]` and values `[B, C, K, H']` of one layer."""

    key: CacheArray
    value: CacheArray

    @classmethod
    def empty(
        cls,
        shape: CacheShape,
        slots: int,
        num_heads: int,
        head_dim: int,
        value_dim: int | None = None,
    ) -> KeyValueCache:
        """A ring buffer without tokens, for values of width `value_dim`; None: `head_dim`."""
        widths = head_dim, head_dim if value_dim is None else value_dim
        zeros = [jnp.zeros((shape.batch_size, slots, num_heads, width)) for width in widths]
        return cls.of(*zeros, shape)

    @classmethod
    def of(cls, key: jax.Array, value: jax.Array, shape: CacheShape) -> KeyValueCache:
        """Keys `[B, S, K, H]` and values `[B, S, K, H']`, as `shape` says."""
        spec = shape.spec
        if spec is not None and key.shape[2] == 1:
            spec = PartitionSpec(spec[0], spec[1], None, spec[3])
        arrays = [CacheArray.of(x, shape.storage) for x in (key, value)]
        return cls(*jax.tree.map(lambda x: place(x, spec), arrays))

    @property
    def capacity(self) -> int:
        """The number of slots (C)."""
        return self.key.values.shape[1]

    def read(self, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        """Keys `[B, C, K, H]` and values `[B, C, K, H']`."""
        return self.key.read(dtype), self.value.read(dtype)

    def write(self, key: jax.Array, value: jax.Array, chunk: Chunk) -> KeyValueCache:
        """Adds the keys `[B, T, K, H]` and values `[B, T, K, H']` of a pass."""
        rows, _, heads, width = self.key.values.shape
        sizes = {"B": rows, "K": heads, "H": width, "V": self.value.values.shape[3]}
        assert_axes(sizes, key=(key, "B T K H"), value=(value, "B T K V"))
        assert_floating(key=key, value=value)
        assert_axes(sizes, start=(chunk.start, "B"), count=(chunk.count, "B"))
        assert_integers(start=chunk.start, count=chunk.count)
        slots = chunk.slots(key.shape[1], self.capacity)
        return replace(self, key=self.key.write(slots, key), value=self.value.write(slots, value))

    def reorder(self, beams: jax.Array) -> KeyValueCache:
        """Selects rows, see `reorder_rows`."""
        return replace(self, key=self.key.reorder(beams), value=self.value.reorder(beams))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EncoderCache(KeyValueCache):
    """The keys and values of encoder outputs, which never change; the beams of a row share them."""

    def reorder(self, beams: jax.Array) -> EncoderCache:
        """Returns the cache itself, because all beams of a row read the same encoder outputs."""
        del beams
        return self


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """The cache of all layers of a decoder."""

    lengths: jax.Array
    """int `[B]`: the number of tokens that have been read of each row. Lowering it, by at most
    `CacheShape.chunk`, undoes the last ones: the next tokens overwrite them; see `can_undo`."""
    layers: list[list[Any]]
    """The caches of each layer's sublayers: key/value caches, or trees of arrays `[B, ...]`."""
    encoder_mask: Mask = Mask()
    """The cross-attention mask."""

    @classmethod
    def empty(cls, shape: CacheShape, layers: list[list[Any]], encoder_mask: Mask) -> Cache:
        """A cache without tokens, from the empty caches of the layers."""
        lengths = jnp.zeros(shape.batch_size, jnp.int32)
        rows = None if shape.spec is None else PartitionSpec(shape.spec[0])
        return cls(place(lengths, rows), layers, encoder_mask)

    @property
    def can_undo(self) -> bool:
        """Whether tokens can be undone: not those that a recurrent state has taken up."""
        caches = jax.tree.leaves(self.layers, is_leaf=lambda x: isinstance(x, KeyValueCache))
        return all(isinstance(cache, KeyValueCache) for cache in caches)

    def reset(self) -> Cache:
        """The cache without its tokens."""
        return replace(self, lengths=jnp.zeros_like(self.lengths))

    def reorder(self, beams: jax.Array) -> Cache:
        """Selects the beams that are continued.

        Args:
            beams: int `[B, n]`: of each of B groups of rows the indices of those that are
                continued, in any order and number.

        Returns:
            The cache of B n rows.
        """
        layers = jax.tree.map(
            lambda x: x.reorder(beams) if hasattr(x, "reorder") else reorder_rows(x, beams),
            self.layers,
            is_leaf=lambda x: hasattr(x, "reorder"),
        )
        return replace(self, lengths=reorder_rows(self.lengths, beams), layers=layers)


def reorder_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Selects rows within each group; on a mesh without communication.

    Args:
        x: `[B g, ...]`: B groups of g rows.
        indices: int `[B, n]`: the rows to select from each group, in any order and number.

    Returns:
        `[B n, ...]`.
    """

    def select(x, indices):
        groups = indices.shape[0]
        starts = jnp.arange(groups)[:, None] * (x.shape[0] // groups)
        return x[(starts + indices).reshape(-1)]

    spec = spec_of(x)
    if spec is None:
        return select(x, indices)
    specs = (spec, PartitionSpec(spec[0], None))
    arguments = [place(array, each) for array, each in zip((x, indices), specs, strict=True)]
    return jax.shard_map(select, in_specs=specs, out_specs=spec, check_vma=False)(*arguments)


def _write(array: jax.Array, slots: jax.Array, new: jax.Array) -> jax.Array:
    """Writes `new` `[B, T, ...]` to slots of `array` `[B, C, ...]`, on a mesh device by device."""

    def write(array, slots, new):
        rows = jnp.arange(array.shape[0])[:, None]
        return array.at[rows, slots].set(new, mode="drop", unique_indices=True)

    spec = spec_of(array)
    if spec is None:
        return write(array, slots, new)
    specs = (spec, PartitionSpec(spec[0], None), spec)
    arguments = [place(x, each) for x, each in zip((array, slots, new), specs, strict=True)]
    return jax.shard_map(write, in_specs=specs, out_specs=spec, check_vma=False)(*arguments)
