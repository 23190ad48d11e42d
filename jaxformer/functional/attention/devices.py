"""Attention in a mesh: which rows, heads, queries and keys each device computes with."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.functional.arrays import mesh_axes, place, spec_of
from jaxformer.functional.attention.reference import Request


def exchange(attend, query, key, value, request, time):
    """Computes whole rows of a part of the heads on each device (DeepSpeed Ulysses)."""
    # Devices whose query heads read the same key/value head get a copy of it.
    copies = -(-jax.lax.axis_size(time) // key.shape[2])
    key, value = (jnp.repeat(x, copies, axis=2) for x in (key, value))
    whole = (
        jax.lax.all_to_all(x, time, split_axis=2, concat_axis=1, tiled=True)
        for x in (query, key, value)
    )
    output = attend(*whole, request)
    return jax.lax.all_to_all(output, time, split_axis=1, concat_axis=2, tiled=True)


def in_order(attend, query, key, value, request, time):
    """Computes a device's own queries with all keys."""
    length = query.shape[1]
    start = jax.lax.axis_index(time) * length
    return attend(query, key, value, request.block(start, length, 0, key.shape[1]))


def zigzag(attend, query, key, value, request, time):
    """Computes half i and half 2n - 1 - i of the 2n halves of all queries on device i of n."""
    # Under a causal mask all devices then read the same number of keys. In order, the last one
    # would read twice as many as on average.
    parts = dealt(query, time)
    length = parts[0].shape[1]
    starts = starts_of(jax.lax.axis_index(time), len(parts), length, time)
    outputs = [
        attend(part, key, value, request.block(start, length, 0, key.shape[1]))
        for part, start in zip(parts, starts, strict=True)
    ]
    return returned(outputs, time)


def dealt(x: jax.Array, time) -> list[jax.Array]:
    """Deals the halves of a part `[B, T, ...]`, an early and a late one to each device."""
    # An odd part is neither cut nor moved.
    if x.shape[1] % 2:
        return [x]
    halves = enumerate(jnp.split(x, 2, axis=1))
    return [jax.lax.ppermute(half, time, _moves(side, time)) for side, half in halves]


def returned(parts: list[jax.Array], time) -> jax.Array:
    """Reverses `dealt`."""
    if len(parts) == 1:
        return parts[0]
    back = ([(to, of) for of, to in _moves(side, time)] for side in range(2))
    own = [jax.lax.ppermute(part, time, moves) for part, moves in zip(parts, back, strict=True)]
    return jnp.concatenate(own, axis=1)


def starts_of(device: jax.Array, count: int, length: int, time) -> list[jax.Array]:
    """Returns the starts of the `count` parts of a length that `dealt` gives a device."""
    if count == 1:
        return [device * length]
    late = 2 * jax.lax.axis_size(time) - 1 - device
    return [jnp.where(device % 2 == side, device, late) * length for side in range(2)]


def _moves(side: int, time) -> list[tuple[int, int]]:
    """Returns the (source, target) devices of the first or second halves of all devices."""
    size = jax.lax.axis_size(time)
    return [(i, min(2 * i + side, 2 * size - 1 - 2 * i - side)) for i in range(size)]


def heads_suffice(heads: int, kv_heads: int, devices: int) -> bool:
    """Returns whether each of the devices along time can have a part of the heads."""
    # The devices must divide the query heads, and the key/value heads or be a multiple of them.
    return heads % devices == 0 and (kv_heads % devices == 0 or devices % kv_heads == 0)


def has_whole_rows(query: jax.Array, key: jax.Array, request: Request) -> bool:
    """Returns whether each device can compute whole rows of its heads, see `exchange`."""
    spec = spec_of(query)
    if spec is None or spec[1] is None:
        return True
    if spec_of(key)[1] != spec[1]:
        return False
    sizes = jax.typeof(query).sharding.mesh.shape
    time, shards = (math.prod(sizes[axis] for axis in mesh_axes(entry)) for entry in spec[1:3])
    kv_heads = key.shape[2] // shards or 1  # one head is not sharded
    # Each head has its own distance vectors, of which no copies are made.
    copies = request.distances is None or kv_heads % time == 0
    return copies and heads_suffice(query.shape[2] // shards, kv_heads, time)


def in_mesh(attend, query, key, value, request, parts=in_order, turns=None):
    """Returns `attend` of the rows, queries and heads of each device if the arrays are sharded.

    If they are sharded along time, the devices exchange time for heads where these suffice.
    Otherwise each gathers all keys of its rows, and `parts` chooses the queries that it computes:
    those of its own shard (`in_order`), or as many early as late ones (`zigzag`). With `turns`,
    such as `ring`, keys that are sharded along time are neither exchanged nor gathered. The outputs
    `[B, T, N, H']` are sharded as the queries.

    References:
        Jacobs et al., DeepSpeed Ulysses (https://arxiv.org/abs/2309.14509).
    """
    spec = spec_of(query)
    if spec is None:
        return attend(query, key, value, request)
    batch, time, heads, _ = spec
    key_time = time if spec_of(key)[1] == time else None
    turns = turns if key_time is not None else None
    exchanges = time is not None and turns is None and has_whole_rows(query, key, request)
    of_query = PartitionSpec(batch, time, heads, None)
    of_key = PartitionSpec(batch, key_time, heads if key.shape[2] > 1 else None, None)
    own_heads = (*mesh_axes(heads), *mesh_axes(time)) if exchanges else heads
    of_request = _partition_specs(request, query.shape[0], batch, own_heads)
    in_specs = (of_query, of_key, of_key, of_request)
    arguments = jax.tree.map(place, (query, key, value, request), in_specs)

    def attend_locally(query, key, value, request):
        if time is None:
            return attend(query, key, value, request)
        if turns is not None:
            return turns(query, key, value, request, time)
        if exchanges:
            return exchange(attend, query, key, value, request, time)
        # Here, not by resharding before: the gradient of this gather is a reduce-scatter.
        if key_time is not None:
            key, value = (jax.lax.all_gather(x, time, axis=1, tiled=True) for x in (key, value))
        return parts(attend, query, key, value, request, time)

    on_each = jax.shard_map(attend_locally, in_specs=in_specs, out_specs=of_query, check_vma=False)
    return on_each(*arguments)


def _partition_specs(request: Request, batch_size: int, batch, heads) -> Request:
    """Returns the partition specs of a request's arrays, from those of the batch and head axes."""

    def rows(x):
        entries = [None] * jnp.ndim(x)
        if entries and x.shape[0] == batch_size:
            entries[0] = batch
        return PartitionSpec(*entries)

    bias = request.bias
    dropout = request.dropout
    distances = request.distances
    if bias is not None:
        bias = bias.partition_specs(rows, heads)
    if dropout is not None:
        own = {"rows": PartitionSpec(batch), "heads": PartitionSpec(heads)}
        dropout = replace(jax.tree.map(lambda _: PartitionSpec(), dropout), **own)
    if distances is not None:
        distances = distances.partition_specs(heads)
    mask = jax.tree.map(rows, request.mask)
    sinks = None if request.sinks is None else PartitionSpec(heads)
    return replace(request, mask=mask, bias=bias, dropout=dropout, distances=distances, sinks=sinks)
