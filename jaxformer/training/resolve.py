"""Resolves an experiment: opens the models it names, fills in open fields, checks everything.

All of this happens before any data is read. Training from scratch needs only this module.
"""

import contextlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import jax

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_dir import CHECKPOINTS, reporting_folder_errors
from jaxformer.config.experiment import Config, validate
from jaxformer.config.loggers import check_loggers
from jaxformer.data import Datasets
from jaxformer.data.tasks.images.labelled import Images
from jaxformer.data.tasks.sounds.labelled import LabelledClips
from jaxformer.data.tasks.sounds.speech_to_text import SpeechToText
from jaxformer.distributed.compiler_options import check_options
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.paths import AnyPath
from jaxformer.models import Parameters
from jaxformer.models.lora import abstract_model_of
from jaxformer.training.step import TrainProgram, TrainState

if TYPE_CHECKING:
    from jaxformer.pretrained.checkpoint import Checkpoint
    from jaxformer.training.transfer.transfer import Transfer


@dataclass(frozen=True, eq=False)
class ResolvedConfig:
    """An experiment with all fields filled in, and the checkpoints that it names."""

    config: Config
    origin: "Checkpoint | None" = None
    """The model that `init_from` names; None also if it no longer exists when a run is continued.
    """
    teacher: "Checkpoint | None" = None
    """The model that `train.distillation` names."""
    reference: "Checkpoint | None" = None
    """The model that `train.preference` names, or the origin."""

    @cached_property
    def transfer(self) -> "Transfer | None":
        """The parameters to take from the origin, if any; raises ConfigError if they do not fit."""
        if self.origin is None:
            return None
        from jaxformer.training.transfer.transfer import Transfer

        model = self.config.model
        layers = self.config.init_layers
        arrays = abstract_model_of(model, self.config.train.lora).shapes
        shapes = {name: array.shape for name, array in arrays.items()}
        return Transfer.of(self.origin, model, shapes, layers)

    def initial_state(self, program: TrainProgram) -> TrainState:
        """Returns the initial state on the program's mesh, with the origin's parameters if any."""
        state = program.init(self.config.train.seed)
        return state if self.transfer is None else self.transfer.start(state, program)

    def with_references(
        self,
        folder: AnyPath,
        data: Datasets,
        program: TrainProgram,
        initial: TrainState | None = None,
    ) -> Datasets:
        """Adds the reference's log-probabilities to preference data; other data is unchanged."""
        if self.config.train.preference is None:
            return data
        from jaxformer.training.reference import with_references

        def start() -> Parameters:
            return (initial or self.initial_state(program)).params

        return with_references(self.config, self.reference, folder, data, program, start)

    def close(self) -> None:
        """Releases the checkpoints, once their parameters are read."""
        for checkpoint in (self.origin, self.teacher, self.reference):
            if checkpoint is not None:
                checkpoint.close()


def resolve(config: Config, folder: AnyPath, fresh: bool = False) -> ResolvedConfig:
    """Opens every model that an experiment names, and checks everything before data is read."""
    filled = fill(config, None if fresh else folder)
    config = filled.config
    validate(config, jax.device_count())
    check_loggers(config.train.loggers)
    check_options(config.train.compiler_options)
    with reporting_folder_errors(folder):
        starts = fresh or not saved_steps(folder / CHECKPOINTS)
    resolved = replace(filled, teacher=_teacher(config), reference=_reference(filled, starts))
    if starts and resolved.transfer is not None:
        from jaxformer.training.transfer.origin import check_tokenizer

        check_tokenizer(getattr(config.data, "tokenizer", None), resolved.origin)
    return resolved


def fill(
    config: Config, folder: AnyPath | None = None, *, labels_needed: bool = True
) -> ResolvedConfig:
    """Returns an experiment with open fields filled in from the checkpoint it starts from.

    A model of None becomes the checkpoint's, with the head that matches the data; a tokenizer to be
    trained becomes the checkpoint's; an objective of None becomes the one that the checkpoint was
    trained with; a `sequence_length` of None becomes the maximum length of model and tokenizer;
    labels of the checkpoint keep their ids. A hub name is pinned to its current commit.
    """
    try:
        data = config.data.as_found()
        config = config if data is config.data else replace(config, data=data)
    except DataError:
        if labels_needed:
            raise
    if config.init_from is None:
        return ResolvedConfig(_without_checkpoint(config))
    from jaxformer.training.transfer.fields import from_origin

    return ResolvedConfig(*from_origin(config, folder, labels_needed))


def _without_checkpoint(config: Config) -> Config:
    """Checks that an experiment without a checkpoint has no open fields, and returns it."""
    data = config.data
    if (missing := _open_field(config)) is not None:
        raise ConfigError(f"{missing}, or name a checkpoint with --init-from DIR")
    if config.model is None or getattr(data, "sequence_length", 0) is not None:
        return config
    limit = getattr(config.model.position, "max_length", None) or data.longest_row
    return replace(config, data=data.of_length(min(data.longest_row, limit)))


def _open_field(config: Config) -> str | None:
    """Returns a field that only a checkpoint could fill in, with a remedy."""
    data = config.data
    if getattr(data, "objective", ...) is None:
        return "data.objective = None: set an objective, such as CausalLM"
    if config.model is None:
        return None
    if isinstance(data, SpeechToText) and not data.prefix:
        return "data.prefix = (): must be the first tokens of every transcript; set them"
    if isinstance(data, LabelledClips) and data.form is None:
        return "data.form = None: set how sounds are read, such as WaveformFeatures"
    if isinstance(data, Images) and data.form_is_open:
        return "data.image_size, channels, mean, std, scaling = None: set them"
    return None


def _teacher(config: Config) -> "Checkpoint | None":
    if config.train.distillation is None:
        return None
    from jaxformer.training.teacher import check_teacher
    from jaxformer.training.transfer.origin import open_named

    teacher = open_named(config.train.distillation.teacher, "train.distillation.teacher")
    check_teacher(config, teacher, config.mesh.axis_sizes(jax.device_count()))
    return teacher


def resolve_reference(config: Config) -> ResolvedConfig:
    """Opens the reference of a preference loss for an evaluation, or returns None."""
    resolved = ResolvedConfig(config)
    if config.init_from is not None and config.train.preference.reference is None:
        from jaxformer.training.transfer.origin import open_named

        with contextlib.suppress(ConfigError):
            origin = open_named(config.init_from, "init_from", may_lack_parts=True)
            resolved = replace(resolved, origin=origin)
    return replace(resolved, reference=_reference(resolved, False))


def _reference(resolved: ResolvedConfig, needed: bool) -> "Checkpoint | None":
    """Opens the reference of a preference loss; None if it is unavailable and not needed."""
    config = resolved.config
    preference = resolved.config.train.preference
    if preference is None or preference.reference is None:
        return None if preference is None else resolved.origin
    from jaxformer.training.reference import check_reference
    from jaxformer.training.transfer.origin import open_named

    try:
        reference = open_named(preference.reference, "train.preference.reference")
    except ConfigError:
        if needed:
            raise
        return None
    check_reference(config, reference, config.mesh.axis_sizes(jax.device_count()))
    return reference
