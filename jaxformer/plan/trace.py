"""The training step of an experiment, traced for a machine that is not at hand."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import jax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from jaxformer.config import Config, TrainConfig, validate
from jaxformer.config.experiment import check_mesh
from jaxformer.distributed.sharding import MESH_AXES, MeshConfig, check_slices, on_mesh
from jaxformer.errors import ConfigError, DataError
from jaxformer.models.model import ModelConfig
from jaxformer.plan.program import Program, flattened
from jaxformer.plan.slices import Slice
from jaxformer.pretrained.auto import open_checkpoint
from jaxformer.training.preference_loss import preference_loss
from jaxformer.training.step import TrainProgram
from jaxformer.training.teacher import abstract_distillation_loss


class Stage(NamedTuple):
    """A part of a run whose batches have one shape."""

    config: Config
    """The experiment as if the whole run were this stage."""
    steps: int | None
    """How many it has; None: the experiment does not say where it ends."""


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
        return self.config.data.num_sequences * self.config.row_lengths["inputs"]

    @property
    def batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The arrays of a batch, sharded as the step takes them."""
        program, rows = self.train_program, self.config.data.batch_size
        spec = program.loss.batch_spec(program.model, rows, self.config.row_lengths)
        return {name: x.update(sharding=program.batch_sharding) for name, x in spec.items()}

    @property
    def teacher(self) -> ModelConfig | None:
        """The model that reads the batches beside the one in training."""
        return teacher_of(self.config.train)[0]

    @cached_property
    def program(self) -> Program:
        """The operations of the step."""
        program = self.train_program
        state, batch = program.state_shapes, self.batch
        with on_mesh(program.mesh):
            traced = jax.jit(program._updated).trace(state, batch, program.loss.parameters)
        return flattened(traced.jaxpr)


def stages_of(config: Config) -> tuple[Stage, ...]:
    """The parts of a run whose batches have one shape, in order; one without a ramp."""
    end, found = config.train.steps, []
    for phase in config.data.phases:
        stops = [stop for stop in (phase.stop, end) if stop is not None]
        steps = min(stops) - phase.start if stops else None
        if steps is None or steps > 0:
            found.append(Stage(replace(config, data=phase.data), steps))
    return tuple(found)


def check(config: Config, slice_: Slice) -> None:
    """Checks that an experiment can run on a slice on its own mesh.

    Args:
        config: The experiment.
        slice_: The chips.

    Raises:
        ConfigError: Names what does not fit together, and what would be right.
    """
    devices, name = slice_.num_devices, slice_.name
    shape = "mesh data x fsdp x tensor = " + " x ".join(map(str, vars(config.mesh).values()))
    given = prod(size for size in vars(config.mesh).values() if size != -1)
    if given > devices:
        raise ConfigError(f"{shape} needs {given} devices, {name} has {devices}")
    sizes = config.mesh.sizes(devices)
    if slice_.hosts > 1 and prod(sizes) < devices:
        raise ConfigError(
            f"{shape} uses {prod(sizes)} of the {devices} devices of {name}: a job of several "
            "hosts must use them all; set one axis to -1"
        )
    check_slices(sizes[0], slice_.num_slices)
    validate(config, devices)
    teacher, _ = teacher_of(config.train)
    if teacher is not None:
        check_mesh(teacher, dict(zip(MESH_AXES, sizes, strict=True)))


def check_without_mesh(config: Config) -> None:
    """Checks what no mesh changes.

    Args:
        config: The experiment.

    Raises:
        ConfigError: Names what does not fit together, and what would be right.
    """
    validate(replace(config, mesh=MeshConfig()), 1)


def teacher_of(train: TrainConfig) -> tuple[ModelConfig | None, str]:
    """The teacher of a distillation; or None, and why it is not known if there is one."""
    if train.distillation is None:
        return None, ""
    return described(train.distillation.teacher, "train.distillation.teacher")


@lru_cache(maxsize=8)
def described(name: str, field: str) -> tuple[ModelConfig | None, str]:
    """A model that an experiment names; or None, and why it is not known.

    Args:
        name: The folder of a run or of a Hugging Face checkpoint, or a name on the hub.
        field: The field that names it.

    Returns:
        The model, and "" or the reason.
    """
    try:
        return open_checkpoint(name, field, weights=False).model, ""
    except (ConfigError, DataError) as error:
        return None, str(error)


def train_program(config: Config, mesh: Mesh | AbstractMesh) -> TrainProgram:
    """What trains an experiment, with shapes for the parameters of other models.

    Args:
        config: The experiment.
        mesh: The devices.

    Returns:
        The program, which can be traced and lowered.

    Raises:
        ConfigError: The teacher does not fit the student.
    """
    train, loss = config.train, None
    if train.steps is None:  # the rows of the data will say; the schedule wants any number
        train = replace(train, steps=1)
    teacher, _ = teacher_of(train)
    if teacher is not None:
        settings, lengths = train.distillation, config.data.lengths
        loss = abstract_distillation_loss(settings, config.model, lengths, teacher, mesh)
    if train.preference is not None:
        loss = preference_loss(train.preference)
    return TrainProgram(config.model, config.optimizer, train, mesh, loss)


def trace_step(config: Config, slice_: Slice) -> TracedStep:
    """The training step of an experiment on a slice; the last one, where batches grow.

    Args:
        config: The experiment; its mesh may leave an axis to fill.
        slice_: The chips.

    Returns:
        The step, which is traced when it is first looked at.

    Raises:
        ConfigError: The experiment does not fit together, or not on so many devices.
    """
    check(config, slice_)
    chip, sizes = slice_.chip, config.mesh.sizes(slice_.num_devices)
    config = replace(config, mesh=MeshConfig(*sizes))
    device = AbstractDevice(chip.device_kind, 1, chip.kind)
    explicit = (AxisType.Explicit,) * len(MESH_AXES)
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=explicit, abstract_device=device)
    return TracedStep(config, slice_, train_program(config, mesh))
