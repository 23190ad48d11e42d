"""The device mesh, and the mapping from logical axes to mesh axes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.mesh_utils import create_device_mesh, create_hybrid_device_mesh
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from jaxformer.checks import check_field, check_types
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import mesh_axes, place, without
from jaxformer.io.notices import warn_once

MESH_AXES = ("data", "fsdp", "tensor", "sequence", "expert")
_MOST_VIRTUAL_DEVICES = 1024

# The mesh axes of each logical axis. The vocabulary is the only sharded axis of its tables: with a
# table sharded along both axes, the partitioner would rematerialize all of it at the lookup.
RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp", "expert"),
    "seq": "sequence",
    "embed": "fsdp",
    "mlp": "tensor",
    "expert": "expert",
    "experts": None,
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "vocab": ("tensor", "fsdp"),
    "vocab_embed": None,
    "norm": None,
    "positions": None,
    "buckets": None,
    "kinds": None,
    "labels": None,
    "pooled": None,
    "patch_rows": None,
    "patch_columns": None,
    "channels": None,
    "features": None,
    "taps": None,
    "rank": None,
    "layers": None,
}


@dataclass(frozen=True)
class MeshConfig:
    """The size of each mesh axis; -1 (for at most one axis) uses the remaining devices."""

    data: int = 1
    """Number of model replicas, each with different rows of the batch."""
    fsdp: int = 1
    """Number of devices that shard the rows of the batch, the parameters and the optimizer state.
    """
    tensor: int = 1
    """Number of devices that shard heads, feed-forward units and the vocabulary."""
    sequence: int = 1
    """Number of devices that shard the tokens of each row; attention gathers keys and values."""
    expert: int = 1
    """Number of devices that shard the rows of the batch, and the experts of each mixture."""

    def __post_init__(self):
        check_types(self, "mesh")
        for name in MESH_AXES:
            size = getattr(self, name)
            rule = "positive, or -1 for the remaining devices"
            check_field(self, name, size == -1 or size >= 1, rule, "mesh")
        if [getattr(self, name) for name in MESH_AXES].count(-1) > 1:
            raise ConfigError("mesh: only one axis may be -1")

    def __str__(self) -> str:
        sizes = (str(getattr(self, name)) for name in MESH_AXES)
        return f"mesh {' x '.join(MESH_AXES)} = {' x '.join(sizes)}"

    def sizes(self, num_devices: int) -> tuple[int, ...]:
        """Returns the sizes of the axes on `num_devices` devices.

        Returns:
            The sizes of `MESH_AXES`.

        Raises:
            ConfigError: The mesh does not fit the devices.
        """
        sizes = [getattr(self, name) for name in MESH_AXES]
        given = math.prod(size for size in sizes if size != -1)
        shape = str(self)
        if given > num_devices:
            are = "is" if num_devices == 1 else "are"
            virtual = (
                f" To try it on a CPU, create virtual devices: JAX_NUM_CPU_DEVICES={given} python "
                "..."
            )
            raise ConfigError(
                f"{shape} needs {given} devices, {num_devices} {are} here."
                + (virtual if given <= _MOST_VIRTUAL_DEVICES else "")
            )
        if -1 in sizes:
            if num_devices % given:
                raise ConfigError(f"{shape}: {given} does not divide the {num_devices} devices")
            sizes[sizes.index(-1)] = num_devices // given
        return tuple(sizes)

    def axis_sizes(self, num_devices: int) -> dict[str, int]:
        """Returns the sizes of the axes on `num_devices` devices by name, like `sizes`."""
        return dict(zip(MESH_AXES, self.sizes(num_devices), strict=True))


def make_mesh(config: MeshConfig, devices: Iterable[jax.Device] | None = None) -> Mesh:
    """Creates the mesh over the first devices (all devices in a job of several processes).

    Returns:
        The mesh, with explicit axis types.

    Raises:
        ConfigError: The mesh does not fit the devices, leaves some processes idle, or has an axis
            other than data across TPU slices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = config.sizes(len(devices))
    used = math.prod(sizes)
    if used < len(devices) and jax.process_count() > 1:
        raise ConfigError(
            f"mesh {sizes} uses {used} of {len(devices)} devices: a job of several processes "
            "must use them all (set one axis to -1)"
        )
    return Mesh(
        _grid(sizes, devices[:used]), MESH_AXES, axis_types=(AxisType.Explicit,) * len(sizes)
    )


def check_slices(data: int, slices: int) -> None:
    """Raises ConfigError unless only the data axis crosses TPU slices."""
    if data % slices:
        raise ConfigError(
            f"mesh.data = {data}: must be a multiple of the {slices} slices, because the network "
            f"between them is too slow for other axes; set --mesh.data {slices}"
        )


def _grid(sizes: tuple[int, ...], devices: list[jax.Device]) -> Any:
    """Returns the devices in the order of the mesh."""
    # GPUs also have slices, one per machine, which any axis may cross.
    is_tpu = devices[0].platform == "tpu"
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if is_tpu else 1
    # jax.make_mesh refuses sizes that split an axis of a TPU's torus.
    if slices == 1:
        return create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    check_slices(sizes[0], slices)
    inside = (sizes[0] // slices, *sizes[1:])
    across = (slices, *[1] * (len(sizes) - 1))
    return create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)


def spec(*axes: str | None) -> PartitionSpec | None:
    """Returns the partition spec of an array with these logical axes, or None without a mesh."""
    rules = [None if axis is None else RULES[axis] for axis in axes]
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else PartitionSpec(*(_cut(mesh, rule) for rule in rules))


def on_rows(arrays: Any) -> Any:
    """Puts a tree of arrays `[B, ...]` in the batch sharding; scalars are replicated."""

    def placed(x: jax.Array) -> jax.Array:
        return place(x, spec("batch", *[None] * (x.ndim - 1))) if x.ndim else x

    return jax.tree.map(placed, arrays)


def mesh_of(arrays: Mapping[str, jax.Array]) -> Mesh | None:
    """Returns the mesh of all arrays; None without a mesh, or if they are traced."""
    sharding = getattr(next(iter(arrays.values())), "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def row_multiple(mesh: Mesh | None) -> int:
    """Returns the number of shards of a batch's rows, which must divide their number."""
    return 1 if mesh is None else row_shards(mesh.shape)


def row_shards(sizes: Mapping[str, int]) -> int:
    """Returns the number of shards of a batch's rows in a mesh with axes of these sizes."""
    return math.prod(sizes.get(axis, 1) for axis in RULES["batch"])


def check_rows(mesh: Mesh | None, rows: int) -> None:
    """Raises ConfigError unless a number of rows can be sharded over the mesh."""
    parts = row_multiple(mesh)
    if rows % parts:
        raise ConfigError(
            f"{rows} rows cannot be sharded over {' x '.join(RULES['batch'])} = {parts} devices: "
            "use a multiple"
        )


def parameter_shardings(
    mesh: Mesh | AbstractMesh | None,
    axes: Mapping[str, tuple[str, ...]],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, Sharding]:
    """Returns the sharding of each parameter, or a single device without a mesh."""
    if mesh is None:
        return dict.fromkeys(axes, SingleDeviceSharding(jax.devices()[0]))
    return {name: parameter_sharding(mesh, name, axes[name], shapes[name].shape) for name in axes}


def parameter_sharding(
    mesh: Mesh | AbstractMesh, name: str, axes: tuple[str, ...], shape: tuple[int, ...]
) -> NamedSharding:
    """Returns the sharding of a parameter.

    Axes of size 1 are not sharded, and a vocabulary only over the mesh axes that divide it.
    """
    used: set[str] = set()
    entries = []
    for axis, size in zip(axes, shape, strict=True):
        if axis not in RULES:
            raise ConfigError(f"parameter {name}: axis {axis!r} has no rule; known: {list(RULES)}")
        rule = mesh_axes(RULES[axis])
        wanted = set(rule)
        if used & wanted:
            raise ConfigError(f"parameter {name}: axes {axes} use {used & wanted} twice")
        used |= wanted
        parts = math.prod(mesh.shape[mesh_axis] for mesh_axis in wanted)
        if size != 1 and size % parts:
            over = " x ".join(f"mesh.{mesh_axis}" for mesh_axis in rule)
            if axis != "vocab":
                raise ConfigError(
                    f"the parameter {name} {tuple(shape)} cannot be sharded as {axes} over a mesh "
                    f"of {dict(mesh.shape)}: {axis!r} = {size} is not divisible by {over} = "
                    f"{parts}; choose sizes that divide it"
                )
            rule = _dividing(mesh, rule, size)
            if isinstance(mesh, Mesh):
                cut = " x ".join(f"mesh.{mesh_axis}" for mesh_axis in rule)
                warn_once(
                    f"the vocabulary of {size} is not divisible by {over} = {parts}: its tables "
                    f"are {f'sharded over {cut} alone' if cut else 'whole on each device'}"
                )
        entries.append(None if size == 1 else _cut(mesh, rule))
    return NamedSharding(mesh, PartitionSpec(*entries))


def _dividing(mesh: Mesh | AbstractMesh, candidates: tuple[str, ...], size: int) -> tuple[str, ...]:
    """Returns the mesh axes, added in order, over which `size` can be sharded evenly."""
    chosen: tuple[str, ...] = ()
    for axis in candidates:
        parts = math.prod(mesh.shape[each] for each in (*chosen, axis))
        if mesh.shape[axis] > 1 and size % parts == 0:
            chosen += (axis,)
    return chosen


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Returns the sharding of the rows of a batch."""
    return NamedSharding(mesh, PartitionSpec(_cut(mesh, RULES["batch"])))


def _cut(
    mesh: Mesh | AbstractMesh, rule: str | tuple[str, ...] | None
) -> str | tuple[str, ...] | None:
    # JAX refuses some reshapes of arrays whose type names a mesh axis, even of size 1. Inside
    # `jax.shard_map` a type does not name manual axes.
    manual = set(getattr(mesh, "manual_axes", ()))
    return without(
        rule, manual | {axis for axis in mesh_axes(rule) if mesh.shape.get(axis, 1) == 1}
    )
