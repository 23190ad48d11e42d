"""Sharding from the types of arrays, so that pure functions need no mesh argument."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

# The mesh axis along which a program is written for each copy of the model; None: for all of them.
_COPIES = jax.make_user_context(None)


def rows_of_copies(axis: str) -> AbstractContextManager:
    """Says that arrays have the rows of one copy of the model, as inside `jax.shard_map`.

    What depends on the number of a row (dropout) is then what it is for the rows of all copies.

    Args:
        axis: The mesh axis along which the copies lie; their rows follow one another.

    Returns:
        A context manager.
    """
    return _COPIES(axis)


def first_row(rows: int) -> jax.Array:
    """uint32: the number of the first of this many rows among those of all copies of the model."""
    axis = _COPIES.value
    copy = 0 if axis is None else jax.lax.axis_index(axis)
    return jnp.uint32(rows) * jnp.asarray(copy, jnp.uint32)


def is_cut_by_hand() -> bool:
    """Whether arrays have the rows of one copy of the model, see `rows_of_copies`."""
    return _COPIES.value is not None


def spec_of(x: jax.Array) -> PartitionSpec | None:
    """Returns the partition spec in the type of `x`, one entry per axis.

    None if no mesh is set or its axes are not explicit: then the compiler decides or, inside
    `shard_map`, the array is the part of one device.
    """
    sharding = jax.typeof(x).sharding
    return sharding.spec if sharding.mesh.explicit_axes else None


def platform() -> str:
    """Returns the platform that the computation is traced for: "cpu", "gpu" or "tpu".

    It is that of the mesh in use, which differs from this machine's in ahead-of-time compilation,
    or else that of JAX's default backend.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    # jax 0.10.0 does not say which platform the devices of a mesh belong to.
    return getattr(device, "platform", None) or jax.default_backend()


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec: none, one or several."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def without(entry: str | tuple[str, ...] | None, used: set[str]) -> tuple[str, ...] | str | None:
    """Returns one entry of a spec without the mesh axes in `used`."""
    kept = tuple(axis for axis in mesh_axes(entry) if axis not in used)
    return kept[0] if len(kept) == 1 else kept or None


def place(x: jax.Array, spec: PartitionSpec | None) -> jax.Array:
    """Reshards `x` to `spec`; None (no mesh) leaves it unchanged."""
    return x if spec is None else jax.sharding.reshard(x, spec)


def per_device(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """Applies a function to each device's own rows and heads.

    In an explicit mesh JAX refuses some operations on sharded axes, such as a reshape that splits
    or merges heads, because it cannot know where the result should be. Within `function` nothing is
    sharded. It must treat rows and heads separately: `per_device(lambda x: x[:, :, ::2], query)`.

    Args:
        function: From arrays to an array whose leading axes are sharded as those of the first.
        *arrays: Activations `[B, T, N, H]`, or others with the batch or heads in the same places.

    Returns:
        The result, sharded as the first array; without a mesh `function(*arrays)`.
    """
    specs = tuple(spec_of(x) for x in arrays)
    if specs[0] is None:
        return function(*arrays)
    entries = list(specs[0])
    while entries and entries[-1] is None:
        entries.pop()
    sharded = PartitionSpec(*entries)
    return jax.shard_map(function, in_specs=specs, out_specs=sharded, check_vma=False)(*arrays)
