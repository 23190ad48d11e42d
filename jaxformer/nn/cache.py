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
    per_device,
    place,
    platform,
    spec_of,
)
from jaxformer.functional.linear import quantized
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
    """The sharding of arrays `[B, K, C, H]`, where a single head is replicated; None without a
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
    slots is a ring buffer: the token at position p is in slot (p + shift) mod C.
    """

    start: jax.Array
    """int `[B]`: the number of tokens that were read before."""
    count: jax.Array
    """int `[B]`: the number of real tokens in this pass."""
    shift: jax.Array | None = None
    """int `[B]`: start + shift is the same in all rows that have real tokens; None: the shift is 0
    and rows advance independently."""

    @property
    def stop(self) -> jax.Array:
        """Int `[B]`: the number of tokens that have been read after this pass."""
        return self.start + self.count

    def positions(self, length: int) -> jax.Array:
        """Int `[B, T]`: the positions of the tokens."""
        return self.start[:, None] + jnp.arange(length)[None, :]

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
        return last - self._before(last, capacity)

    def written(self, array: jax.Array, new: jax.Array) -> jax.Array:
        """Writes the real tokens to their slots.

        A row without real tokens may lose the contents of the slot after those of the longest row.

        Args:
            array: `[B, K, C, H]`.
            new: `[B, K, T, H]`.

        Returns:
            The updated array.
        """
        rows, heads, capacity, _ = array.shape
        length = new.shape[2]
        if length == 1 and (self.shift is not None or rows == 1):
            shift = 0 if self.shift is None else self.shift
            slot = jnp.max(self.start + shift) % capacity
            # XLA's CPU backend would update the array and its reshaped copy, and copy both. The
            # backend of jaxlib 0.10 scatters few bits through a float32 copy instead.
            few_bits = jax.__version_info__ < (0, 11) and array.dtype in (jnp.bfloat16, jnp.float16)
            if platform() == "cpu" and not few_bits:
                places = array.at[jnp.arange(rows)[:, None], jnp.arange(heads)[None, :], slot]
                return places.set(new[:, :, 0], mode="promise_in_bounds", unique_indices=True)
            return jax.lax.dynamic_update_slice_in_dim(array, new, slot, axis=2)
        # XLA scatters one token after the other on a TPU, and a float32 copy of bfloat16 on a CPU.
        order_BC = -self._before(self.start[:, None], capacity) % capacity
        index_BC = jnp.minimum(order_BC, length - 1)
        tokens = jnp.take_along_axis(new, index_BC[:, None, :, None], axis=2)
        is_new_BC = order_BC < self.count[:, None]
        return jnp.where(is_new_BC[:, None, :, None], tokens, array)

    def _before(self, position: jax.Array, capacity: int) -> jax.Array:
        """Int `[B, C]`: how many slots each slot is before that of a position `[B, 1]`."""
        shift = 0 if self.shift is None else self.shift[:, None]
        return (position + shift - jnp.arange(capacity)[None, :]) % capacity


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CacheArray:
    """An array `[B, K, C, H]` in the dtype of the cache."""

    values: jax.Array
    scales: jax.Array | None
    """float32 `[B, K, C, 1]` for int8 values; None for other dtypes."""

    @classmethod
    def of(cls, x: jax.Array, storage: Storage) -> CacheArray:
        """Converts `[B, K, C, H]`; int8 is `quantized`, with a scale for each token and head."""
        if storage != "int8":
            return cls(x.astype(storage), None)
        rounded = quantized(x, 1, layers=x.ndim - 1)
        return cls(rounded.values, rounded.scales[..., None])

    @property
    def storage(self) -> str:
        """The dtype."""
        return str(self.values.dtype)

    def read(self, dtype: jnp.dtype) -> jax.Array:
        """The whole array `[B, K, C, H]` in `dtype`."""
        if self.scales is None:
            return self.values.astype(dtype)
        return (self.values.astype(jnp.float32) * self.scales).astype(dtype)

    def write(self, x: jax.Array, chunk: Chunk) -> CacheArray:
        """Writes the real tokens of `x` `[B, K, T, H]`."""
        new = CacheArray.of(x, self.storage)
        return jax.tree.map(lambda old, part: _written(old, part, chunk), self, new)

    def reorder(self, beams: jax.Array) -> CacheArray:
        """Selects rows, see `reorder_rows`."""
        return jax.tree.map(lambda x: reorder_rows(x, beams), self)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValueCache:
    """The keys `[B, K, C, H]` and values `[B, K, C, H']` of one layer.

    Heads precede slots, so that the products of attention read each head's keys contiguously.
    """

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
        zeros = [jnp.zeros((shape.batch_size, num_heads, slots, width)) for width in widths]
        return cls._of(*zeros, shape)

    @classmethod
    def of(cls, key: jax.Array, value: jax.Array, shape: CacheShape) -> KeyValueCache:
        """Keys `[B, S, K, H]` and values `[B, S, K, H']`, in the form of `shape`."""
        return cls._of(key.swapaxes(1, 2), value.swapaxes(1, 2), shape)

    @classmethod
    def _of(cls, key: jax.Array, value: jax.Array, shape: CacheShape) -> KeyValueCache:
        spec = shape.spec
        if spec is not None and key.shape[1] == 1:
            spec = PartitionSpec(spec[0], None, *spec[2:])
        arrays = [CacheArray.of(x, shape.storage) for x in (key, value)]
        return cls(*jax.tree.map(lambda x: place(x, spec), arrays))

    @property
    def capacity(self) -> int:
        """The number of slots (C)."""
        return self.key.values.shape[2]

    def read(self, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        """Keys `[B, C, K, H]` and values `[B, C, K, H']`."""
        return self.key.read(dtype).swapaxes(1, 2), self.value.read(dtype).swapaxes(1, 2)

    def write(self, key: jax.Array, value: jax.Array, chunk: Chunk) -> KeyValueCache:
        """Adds the keys `[B, T, K, H]` and values `[B, T, K, H']` of a pass."""
        rows, heads, _, width = self.key.values.shape
        sizes = {"B": rows, "K": heads, "H": width, "V": self.value.values.shape[3]}
        assert_axes(sizes, key=(key, "B T K H"), value=(value, "B T K V"))
        assert_floating(key=key, value=value)
        assert_axes(sizes, start=(chunk.start, "B"), count=(chunk.count, "B"))
        assert_integers(start=chunk.start, count=chunk.count)
        key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
        return replace(self, key=self.key.write(key, chunk), value=self.value.write(value, chunk))

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
    shift: jax.Array | None = None
    """int `[B]`, see `Chunk`; None: rows advance independently."""

    @classmethod
    def empty(cls, shape: CacheShape, layers: list[list[Any]], encoder_mask: Mask) -> Cache:
        """A cache without tokens, from the empty caches of the layers."""
        lengths = jnp.zeros(shape.batch_size, jnp.int32)
        rows = None if shape.spec is None else PartitionSpec(shape.spec[0])
        return cls(place(lengths, rows), layers, encoder_mask)

    @property
    def can_undo(self) -> bool:
        """Whether tokens can be undone; a recurrent state does not allow it."""
        caches = jax.tree.leaves(self.layers, is_leaf=lambda x: isinstance(x, KeyValueCache))
        return all(isinstance(cache, KeyValueCache) for cache in caches)

    def reset(self) -> Cache:
        """The cache without its tokens."""
        return replace(self, lengths=jnp.zeros_like(self.lengths))

    def reorder(self, beams: jax.Array) -> Cache:
        """The cache of B n rows, with those of each group that int `[B, n]` selects."""
        layers = jax.tree.map(
            lambda x: x.reorder(beams) if hasattr(x, "reorder") else reorder_rows(x, beams),
            self.layers,
            is_leaf=lambda x: hasattr(x, "reorder"),
        )
        rows = {"lengths": self.lengths, "shift": self.shift}
        rows = jax.tree.map(lambda x: reorder_rows(x, beams), rows)
        return replace(self, layers=layers, **rows)


def reorder_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Selects rows int `[B, n]` within each of B groups of `x` `[B g, ...]`: `[B n, ...]`."""
    # On a mesh without communication.

    def select(x, indices):
        groups = indices.shape[0]
        starts = jnp.arange(groups)[:, None] * (x.shape[0] // groups)
        return x[(starts + indices).reshape(-1)]

    if (spec := spec_of(x)) is not None:
        indices = place(indices, PartitionSpec(spec[0], None))
    return per_device(select, x, indices)


def _written(array: jax.Array, new: jax.Array, chunk: Chunk) -> jax.Array:
    """`Chunk.written`, on a mesh device by device."""
    spec = spec_of(array)
    if spec is None:
        return chunk.written(array, new)
    specs = (spec, spec, jax.tree.map(lambda _: PartitionSpec(spec[0]), chunk))
    arguments = jax.tree.map(place, (array, new, chunk), specs)
    write = jax.shard_map(
        lambda array, new, chunk: chunk.written(array, new),
        in_specs=specs,
        out_specs=spec,
        check_vma=False,
    )
    return write(*arguments)
