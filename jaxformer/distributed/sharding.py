"""The device mesh, and the one table from logical axes to mesh axes."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
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

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import mesh_axes, place, without

MESH_AXES = ("data", "fsdp", "tensor")
_MOST_VIRTUAL_DEVICES = 1024

# Where each logical axis lives. The vocabulary is the only sharded axis of its tables: a table cut
# along both axes makes the partitioner rematerialise the whole of it at the lookup.
RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "seq": None,
    "embed": "fsdp",
    "mlp": "tensor",
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
    "taps": None,
    "rank": None,
    "layers": None,
}


@dataclass(frozen=True)
class MeshConfig:
    """How many devices each mesh axis takes; -1 (one axis at most) takes what is left."""

    data: int = 1
    """Copies of the model, each with its own rows of the batch."""
    fsdp: int = 1
    """Devices over which the rows of the batch, the parameters and the optimizer state are cut."""
    tensor: int = 1
    """Devices over which heads, feed-forward units and the vocabulary are cut."""

    def __post_init__(self):
        check_types(self, "mesh")
        for name in MESH_AXES:
            size = getattr(self, name)
            if size != -1 and size < 1:
                raise ConfigError(f"mesh.{name} = {size}: give a positive size, or -1 to fill")
        if [self.data, self.fsdp, self.tensor].count(-1) > 1:
            raise ConfigError("mesh: only one axis may be -1")

    def sizes(self, num_devices: int) -> tuple[int, int, int]:
        """The sizes of the axes on `num_devices` devices.

        Returns:
            The sizes of the data, fsdp and tensor axes.

        Raises:
            ConfigError: The mesh does not fit the devices.
        """
        sizes = [self.data, self.fsdp, self.tensor]
        given = math.prod(size for size in sizes if size != -1)
        shape = f"mesh data x fsdp x tensor = {self.data} x {self.fsdp} x {self.tensor}"
        if given > num_devices:
            are = "is" if num_devices == 1 else "are"
            virtual = (
                f" To try it on a CPU, make virtual devices: JAX_NUM_CPU_DEVICES={given} python ..."
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


def make_mesh(config: MeshConfig, devices: Iterable[jax.Device] | None = None) -> Mesh:
    """The mesh over the first devices (all of them in a job of several processes).

    Returns:
        The mesh, with explicit axis types.

    Raises:
        ConfigError: The mesh does not fit the devices, leaves some of several processes idle, or
            has an axis other than data across the slices of a TPU.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = config.sizes(len(devices))
    used = math.prod(sizes)
    if used < len(devices) and jax.process_count() > 1:
        raise ConfigError(
            f"mesh {sizes} uses {used} of {len(devices)} devices: a job of several processes "
            "must use them all (set one axis to -1)"
        )
    return Mesh(_grid(sizes, devices[:used]), MESH_AXES, axis_types=(AxisType.Explicit,) * 3)


def check_slices(data: int, slices: int) -> None:
    """Raises ConfigError unless the data axis alone can cross the slices of a TPU."""
    if data % slices:
        raise ConfigError(
            f"mesh.data = {data}: must be a multiple of the {slices} slices, because the network "
            f"between them is too slow for other axes; give --mesh.data {slices}"
        )


def _grid(sizes: tuple[int, int, int], devices: list[jax.Device]) -> Any:
    """The devices in the order of the mesh."""
    # GPUs have slices, too, one for each machine: any axis may cross those.
    is_tpu = devices[0].platform == "tpu"
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if is_tpu else 1
    # jax.make_mesh refuses sizes that cut through an axis of a TPU's torus.
    if slices == 1:
        return create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    check_slices(sizes[0], slices)
    inside, across = (sizes[0] // slices, *sizes[1:]), (slices, 1, 1)
    return create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)


def spec(*axes: str | None) -> PartitionSpec | None:
    """The partition spec of an array with these logical axes; None where no mesh is set."""
    rules = [None if axis is None else RULES[axis] for axis in axes]
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else PartitionSpec(*(_cut(mesh, rule) for rule in rules))


def on_rows(arrays: Any) -> Any:
    """A tree of arrays `[B, ...]`, each row where the model reads it; scalars are everywhere."""

    def placed(x: jax.Array) -> jax.Array:
        return place(x, spec("batch", *[None] * (x.ndim - 1))) if x.ndim else x

    return jax.tree.map(placed, arrays)


def on_mesh(mesh: Mesh | AbstractMesh | None) -> AbstractContextManager:
    """Where programs run, or are traced, whose parameters lie over a mesh; None: on one device."""
    if mesh is None:
        return nullcontext()
    abstract = isinstance(mesh, AbstractMesh)
    return jax.sharding.use_abstract_mesh(mesh) if abstract else jax.set_mesh(mesh)


def mesh_of(arrays: Mapping[str, jax.Array]) -> Mesh | None:
    """The mesh over which all of them lie; None without a mesh, or where they are traced."""
    sharding = getattr(next(iter(arrays.values())), "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def row_multiple(mesh: Mesh | None) -> int:
    """Into how many parts the rows of a batch are cut: it has a multiple of them."""
    return 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]


def check_rows(mesh: Mesh | None, rows: int) -> None:
    """Raises ConfigError unless so many rows can be cut over the mesh."""
    parts = row_multiple(mesh)
    if rows % parts:
        raise ConfigError(
            f"{rows} rows cannot be cut over data x fsdp = {parts} devices: give a multiple"
        )


def parameter_shardings(
    mesh: Mesh | AbstractMesh | None,
    axes: Mapping[str, tuple[str, ...]],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, Sharding]:
    """Where each parameter lives: `parameter_sharding` of all; without a mesh, on one device."""
    if mesh is None:
        return dict.fromkeys(axes, SingleDeviceSharding(jax.devices()[0]))
    return {name: parameter_sharding(mesh, name, axes[name], shapes[name].shape) for name in axes}


def parameter_sharding(
    mesh: Mesh | AbstractMesh, name: str, axes: tuple[str, ...], shape: tuple[int, ...]
) -> NamedSharding:
    """A parameter's sharding. An axis of size 1 is whole."""
    used: set[str] = set()
    entries = []
    for axis, size in zip(axes, shape, strict=True):
        if axis not in RULES:
            raise ConfigError(f"parameter {name}: axis {axis!r} has no rule; known: {list(RULES)}")
        wanted = set(mesh_axes(RULES[axis]))
        if used & wanted:
            raise ConfigError(f"parameter {name}: axes {axes} use {used & wanted} twice")
        used |= wanted
        parts = math.prod(mesh.shape[mesh_axis] for mesh_axis in wanted)
        if size != 1 and size % parts:
            over = " x ".join(f"mesh.{mesh_axis}" for mesh_axis in mesh_axes(RULES[axis]))
            raise ConfigError(
                f"the parameter {name} {tuple(shape)} cannot be cut as {axes} over a mesh of "
                f"{dict(mesh.shape)}: {axis!r} = {size} is not divisible by {over} = {parts}; "
                "choose sizes that divide it"
            )
        entries.append(None if size == 1 else _cut(mesh, RULES[axis]))
    return NamedSharding(mesh, PartitionSpec(*entries))


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Where the rows of a batch live."""
    return NamedSharding(mesh, PartitionSpec(_cut(mesh, RULES["batch"])))


def _cut(
    mesh: Mesh | AbstractMesh, rule: str | tuple[str, ...] | None
) -> str | tuple[str, ...] | None:
    # JAX refuses some reshapes of arrays whose type names a mesh axis, even one of a single device.
    # Inside `jax.shard_map` a type does not name the axes over which arrays are cut by hand.
    manual = set(getattr(mesh, "manual_axes", ()))
    return without(rule, manual | {axis for axis in mesh_axes(rule) if mesh.shape[axis] == 1})
