"""What an array's type says about where it lives: pure functions need no mesh of their own."""

import jax
from jax.sharding import PartitionSpec


def spec_of(x: jax.Array) -> PartitionSpec | None:
    """The partition spec in the type of `x`, one entry per axis.

    None where no mesh is set, or one whose axes are not explicit: there the compiler decides, or,
    inside `shard_map`, the array is one device's own part.
    """
    sharding = jax.typeof(x).sharding
    return sharding.spec if sharding.mesh.explicit_axes else None


def platform() -> str:
    """What the computation is traced for: "cpu", "gpu" or "tpu".

    The platform of the mesh in use, which may be another than that of the machine at hand (a
    compilation ahead of time), else of JAX's default backend.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    # jax 0.10.0 does not say which platform the devices of a mesh belong to.
    return getattr(device, "platform", None) or jax.default_backend()


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of one entry of a spec: none, one or several."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def without(entry: str | tuple[str, ...] | None, used: set[str]) -> tuple[str, ...] | str | None:
    """One entry of a spec less the mesh axes in `used`."""
    kept = tuple(axis for axis in mesh_axes(entry) if axis not in used)
    return kept[0] if len(kept) == 1 else kept or None


def place(x: jax.Array, spec: PartitionSpec | None) -> jax.Array:
    """`x` resharded to `spec`; unchanged where `spec` is None (no mesh)."""
    return x if spec is None else jax.sharding.reshard(x, spec)
