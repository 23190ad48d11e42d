"""The training step of an experiment, traced for a machine that is not at hand."""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from jaxformer.config import Config, validate
from jaxformer.distributed.sharding import MESH_AXES, MeshConfig, on_mesh
from jaxformer.plan.program import Program, flattened
from jaxformer.plan.slices import Slice
from jaxformer.training.step import TrainProgram


@dataclass(frozen=True)
class TracedStep:
    """One training step of an experiment on a slice; nothing is compiled or allocated."""

    config: Config
    """The experiment, with the sizes of its mesh."""
    slice: Slice
    """The chips."""
    train_program: TrainProgram
    """The step and the shapes of its state."""

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """The devices along each axis of the mesh."""
        return dict(zip(MESH_AXES, self.config.mesh.sizes(self.slice.num_devices), strict=True))

    @property
    def tokens(self) -> int:
        """Tokens, or patches, that the model reads in a step."""
        return self.config.data.batch_size * self.config.row_lengths["inputs"]

    @property
    def batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The arrays of a batch, sharded as the step takes them."""
        program, rows = self.train_program, self.config.data.batch_size
        spec = program.loss.batch_spec(program.model, rows, self.config.row_lengths)
        return {name: x.update(sharding=program.batch_sharding) for name, x in spec.items()}

    @cached_property
    def program(self) -> Program:
        """The operations of the step."""
        program = self.train_program
        state, batch = program.state_shapes, self.batch
        with on_mesh(program.mesh):
            traced = jax.jit(program._updated).trace(state, batch, program.loss.parameters)
        return flattened(traced.jaxpr)


def trace_step(config: Config, slice_: Slice) -> TracedStep:
    """The training step of an experiment on a slice.

    Args:
        config: The experiment; its mesh may leave an axis to fill.
        slice_: The chips.

    Returns:
        The step, which is traced when it is first looked at.

    Raises:
        ConfigError: The experiment does not fit together, or not on so many devices.
    """
    devices, chip = slice_.num_devices, slice_.chip
    validate(config, devices)
    sizes = config.mesh.sizes(devices)
    config = replace(config, mesh=MeshConfig(*sizes))
    device = AbstractDevice(chip.device_kind, 1, chip.kind)
    explicit = (AxisType.Explicit,) * len(MESH_AXES)
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=explicit, abstract_device=device)
    program = TrainProgram(config.model, config.optimizer, config.train, mesh)
    return TracedStep(config, slice_, program)
