"""Shardings from the types of arrays, so that pure functions need no mesh argument."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

# The manual mesh axis of model replicas, or None.
_COPIES = jax.make_user_context(None)


def replica_rows(axis: str) -> AbstractContextManager:
    """Declares that arrays contain the rows of one model replica, as inside `jax.shard_map`.

    Functions of the row index (dropout) then use the index among the rows of all replicas.

    Args:
        axis: The mesh axis of replicas, whose rows are contiguous.

    Returns:
        A context manager.
    """
    return _COPIES(axis)


def first_row(rows: int) -> jax.Array:
    """Returns the uint32 index of the first of these rows among the rows of all model replicas."""
    axis = _COPIES.value
    copy = 0 if axis is None else jax.lax.axis_index(axis)
    return jnp.uint32(rows) * jnp.asarray(copy, jnp.uint32)


def is_manually_sharded() -> bool:
    """Whether arrays contain the rows of one model replica, see `replica_rows`."""
    return _COPIES.value is not None


def spec_of(x: jax.Array) -> PartitionSpec | None:
    """Returns the partition spec in the type of `x`, one entry per axis.

    Returns None if no mesh is set or its axes are not explicit: then the compiler decides or,
    inside `shard_map`, the array is the shard of one device.
    """
    sharding = jax.typeof(x).sharding
    return sharding.spec if sharding.mesh.explicit_axes else None


def platform() -> str:
    """Returns the platform that the computation is traced for: "cpu", "gpu" or "tpu".

    This is the platform of the current mesh, which may differ from the local one in ahead-of-time
    compilation, or otherwise of JAX's default backend.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    # jax 0.10.0 does not expose the platform of an abstract mesh's devices.
    return getattr(device, "platform", None) or jax.default_backend()


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec as a tuple."""
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
    """Applies a function to the rows and heads of each device.

    In an explicit mesh JAX refuses some operations on sharded axes, such as a reshape that splits
    or merges heads, because the sharding of the result is ambiguous. Within `function` arrays are
    not sharded. It must treat rows and heads separately: `per_device(lambda x: x[:, :, ::2],
    query)`.

    Args:
        function: Maps arrays to an array whose leading axes are sharded like those of the first
            argument.
        *arrays: Activations `[B, T, N, H]`, or arrays with the batch and head axes at the same
            positions.

    Returns:
        The result, sharded like the first array; without a mesh `function(*arrays)`.
    """
    specs = tuple(spec_of(x) for x in arrays)
    if specs[0] is None:
        return function(*arrays)
    entries = list(specs[0])
    while entries and entries[-1] is None:
        entries.pop()
    sharded = PartitionSpec(*entries)
    return jax.shard_map(function, in_specs=specs, out_specs=sharded, check_vma=False)(*arrays)
