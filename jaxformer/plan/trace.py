"""Traces the training step of an experiment for devices that are not available locally."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from jaxformer.config import Config, TrainConfig, validate
from jaxformer.config.experiment import check_mesh
from jaxformer.distributed.sharding import MESH_AXES, MeshConfig, check_slices
from jaxformer.distributed.slices import Slice
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.arrays import on_mesh
from jaxformer.models.model import ModelConfig
from jaxformer.plan.program import Program, flattened
from jaxformer.pretrained.auto import open_checkpoint
from jaxformer.training.preference_loss import preference_loss
from jaxformer.training.step import TrainProgram
from jaxformer.training.teacher import abstract_distillation_loss


@dataclass(frozen=True)
class TracedStep:
    """A training step of an experiment on a slice; nothing is compiled or allocated."""

    config: Config
    """The experiment, with concrete mesh sizes."""
    slice: Slice
    train_program: TrainProgram
    """The step and the shapes of its state."""

    @property
    def tokens(self) -> int:
        """Number of tokens or patches that the model reads in a step."""
        return self.config.data.num_sequences * self.config.row_lengths["inputs"]

    @property
    def batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of a batch with their shardings."""
        program = self.train_program
        rows = self.config.data.batch_size
        spec = program.loss.batch_spec(program.model, rows, self.config.batch_lengths)
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
    """Traces the training step of an experiment on a slice; with a ramp, the last step."""
    check(config, slice_)
    chip = slice_.chip
    sizes = config.mesh.sizes(slice_.num_devices)
    config = replace(config, mesh=MeshConfig(*sizes))
    device = AbstractDevice(chip.device_kind, 1, chip.kind)
    explicit = (AxisType.Explicit,) * len(MESH_AXES)
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=explicit, abstract_device=device)
    return TracedStep(config, slice_, train_program(config, mesh))


def train_program(config: Config, mesh: Mesh | AbstractMesh) -> TrainProgram:
    """Returns the training program of an experiment; teacher and reference have shapes only."""
    train, loss = config.train, None
    if train.steps is None:  # the data determines it; the schedule needs a number
        train = replace(train, steps=1)
    teacher, _ = teacher_of(train)
    if teacher is not None:
        lengths = config.data.lengths
        loss = abstract_distillation_loss(train.distillation, config.model, lengths, teacher, mesh)
    if train.preference is not None:
        loss = preference_loss(train.preference)
    return TrainProgram(config.model, config.optimizer, train, mesh, loss)


def check(config: Config, slice_: Slice) -> None:
    """Checks that an experiment can run on a slice with its mesh."""
    devices, name = slice_.num_devices, slice_.name
    shape = str(config.mesh)
    given = prod(size for size in vars(config.mesh).values() if size != -1)
    if given > devices:
        raise ConfigError(f"{shape} needs {given} devices, {name} has {devices}")
    sizes = config.mesh.axis_sizes(devices)
    used = prod(sizes.values())
    if slice_.hosts > 1 and used < devices:
        raise ConfigError(
            f"{shape} uses {used} of the {devices} devices of {name}: a job of several "
            "hosts must use them all; set one axis to -1"
        )
    check_slices(sizes["data"], slice_.num_slices)
    validate(config, devices)
    teacher, _ = teacher_of(config.train)
    if teacher is not None:
        check_mesh(teacher, sizes)


def check_without_mesh(config: Config) -> None:
    """Checks everything that does not depend on the mesh."""
    validate(replace(config, mesh=MeshConfig()), 1)


class RampStage(NamedTuple):
    """A stage of a run whose batches all have one shape."""

    config: Config
    """The experiment as if the whole run were this stage."""
    steps: int | None
    """The number of steps, or None if the experiment does not define it."""


def stages_of(config: Config) -> tuple[RampStage, ...]:
    """Returns the stages of a run in order; a run without a ramp has one."""
    end, found = config.train.steps, []
    for phase in config.data.phases:
        stops = [stop for stop in (phase.stop, end) if stop is not None]
        steps = min(stops) - phase.start if stops else None
        if steps is None or steps > 0:
            found.append(RampStage(replace(config, data=phase.data), steps))
    return tuple(found)


def teacher_of(train: TrainConfig) -> tuple[ModelConfig | None, str]:
    """Returns the teacher of a distillation or None, and the reason if it cannot be read."""
    if train.distillation is None:
        return None, ""
    return checkpoint_model(train.distillation.teacher, "train.distillation.teacher")


@lru_cache(maxsize=8)
def checkpoint_model(name: str, field: str) -> tuple[ModelConfig | None, str]:
    """Returns the model of a checkpoint or None, and the reason if it cannot be read."""
    try:
        return open_checkpoint(name, field, weights=False).model, ""
    except (ConfigError, DataError) as error:
        return None, str(error)
