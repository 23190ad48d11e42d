"""Initializes a run from the parameters of another model, possibly with other heads or layers."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from jaxformer.distributed.processes import is_first, placed
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import diff
from jaxformer.io.staging import name_of
from jaxformer.models.frozen import SCALES, stored
from jaxformer.models.lora import is_factor
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import Parameters, without_part_prefix
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.training.step import TrainProgram, TrainState
from jaxformer.training.transfer.layer_choice import Shapes, Sources, chosen_layers

_log = logging.getLogger(__name__)
# Fields in which two models may differ and still use the same parameters.
_MAY_DIFFER = {
    "attention",
    "compute_dtype",
    "depth_scaled_init",
    "dropout",
    "heads",
    "init_std",
    "interpolate_positions",
    "logit_bias",
    "logit_scale",
    "max_logit_scale",
    "remat",
    "scan_layers",
    "self_attention.dropout",
}


@dataclass(frozen=True)
class Transfer:
    """Which parameters of another model to initialize from, by name."""

    origin: Checkpoint
    """The other model."""
    model: ModelConfig
    """The new model, which may adapt a parameter to its shape."""
    sources: Sources
    """The source arrays of each parameter in the other model."""
    taken: tuple[str, ...]
    """Parameters that take the values of the other model."""
    new: tuple[str, ...]
    """Parameters that only this model has, which keep their initial values."""
    left: tuple[str, ...]
    """Parameters that only the other model has."""
    merged: int
    """Number of taken kernels that were trained through low-rank factors."""
    resized: tuple[str, ...]
    """Parameters that are resized: learned positions for another image size."""
    layers: tuple[int, ...] | None
    """The layers of the other model to use; None uses all."""
    differences: tuple[str, ...]
    """Other differences between the models."""

    @classmethod
    def of(
        cls,
        origin: Checkpoint,
        model: ModelConfig,
        shapes: Shapes,
        layers: tuple[int, ...] | None = None,
    ) -> "Transfer":
        """Determines which parameters to take, without reading them.

        Heads and the pooler may be missing on either side, and a head of another shape counts as
        missing on both. Averaged parameters are used if the run has them, and its low-rank factors
        are merged. Low-rank factors of this model are newly initialized.
        """
        here = {name: shape for name, shape in shapes.items() if not name.endswith(SCALES)}
        origin.add_parts(model)
        if layers is None:
            sources = Sources(dict(origin.shapes), {})
        else:
            sources = chosen_layers(here, origin, layers, model.layer_kinds)
        both = [name for name in here if name in sources.shapes]
        blank = {name: np.broadcast_to(np.float32(0), sources.shapes[name]) for name in both}
        fitted = {name: model.adapted(name, blank[name], origin.model) for name in both}
        taken = tuple(name for name in both if fitted[name].shape == here[name])
        differences = _differences(origin.model, model)
        _check_rest(name_of(origin.folder), here, sources.shapes, set(taken), differences)
        read = {there for name in both for there in sources.read_for(name)}
        return cls(
            origin,
            model,
            sources,
            taken=taken,
            new=tuple(name for name in here if name not in taken),
            left=tuple(name for name in sources.shapes if name not in taken),
            merged=len(origin.adapted & read),
            resized=tuple(name for name in taken if fitted[name] is not blank[name]),
            layers=layers,
            differences=differences,
        )

    def apply(self, params: Parameters) -> Parameters:
        """Replaces the taken parameters in freshly initialized ones, keeping their shardings."""
        names = {there for name in self.taken for there in self.sources.read_for(name)}
        arrays = self.origin.read(names)
        ours = {}
        for name in self.taken:
            found = self.sources.array(name, arrays)
            value = self.model.adapted(name, found, self.origin.model)
            for part, array in stored(name, value, params).items():
                ours[part] = placed(np.asarray(array), params[part].sharding)
        return params | ours

    def start(self, state: TrainState, program: TrainProgram) -> TrainState:
        """Replaces the taken parameters in a fresh state, and reports them."""
        params = self.apply(state.params)
        if is_first():
            print(self.report)
            _warn_of_frozen(self.new, program)
        ema = None if state.ema is None else {name: jnp.copy(params[name]) for name in state.ema}
        return replace(state, params=params, ema=ema)

    @property
    def report(self) -> str:
        """Describes which parameters are taken, new, or left out."""
        merged = f", {self.merged} of them with merged low-rank factors" if self.merged else ""
        lines = [f"parameters from {name_of(self.origin.folder)}: {len(self.taken)} taken{merged}"]
        if self.layers is not None:
            lines += [f"  layers taken there: {', '.join(map(str, self.layers))}"]
        lines += [f"  resized: {', '.join(self.resized)}"] if self.resized else []
        factors = [name for name in self.new if is_factor(name)]
        new = [name for name in self.new if name not in factors]
        new += [f"{len(factors)} low-rank factors"] if factors else []
        lines += [f"  new here: {', '.join(new)}"] if new else []
        lines += [f"  left there: {', '.join(self.left)}"] if self.left else []
        lines += [f"  the models differ: {item}" for item in self.differences]
        return "\n".join(lines)


def _warn_of_frozen(new: Iterable[str], program: TrainProgram) -> None:
    """Warns about new parameters that low-rank training freezes at their random values."""
    if program.train.lora is None:
        return
    able = frozenset(program.abstract_model.base.learning) - frozenset(program.trained)
    frozen = [name for name in new if name in able]
    if frozen:
        _log.warning(
            "%s: newly initialized but frozen at random values: name parameters to train in "
            "addition to the factors "
            'with --train.lora.trained, for example "heads.*" "pooler.*"',
            ", ".join(frozen),
        )


def _check_rest(
    folder: str, here: Shapes, there: Shapes, taken: set[str], differences: tuple[str, ...]
) -> None:
    fixed = [name for name in here if name not in taken and not _replaceable(name)]
    problems = [
        f"{name} has shape {there[name]} there, {here[name]} here"
        if name in there
        else f"{name} is missing there"
        for name in sorted(fixed, key=lambda name: name not in there)
    ]
    if problems:
        reasons = f" ({'; '.join(differences)})" if differences else ""
        raise ConfigError(
            f"--init-from {folder}: the models differ in more than their heads{reasons}: "
            f"{'; '.join(problems[:4])}{f' and {len(problems) - 4} more' if problems[4:] else ''}; "
            "use a config without a model, which takes the checkpoint's: pretrain, sft, "
            "finetune_..."
        )


def _differences(there: ModelConfig, here: ModelConfig) -> tuple[str, ...]:
    """Returns the differing fields that determine the parameters and their meaning."""
    return tuple(
        f"model.{name} is {old!r} there, {new!r} here"
        for name, (old, new) in diff(there, here).items()
        if not _may_differ(without_part_prefix(name))
    )


def _may_differ(field: str) -> bool:
    return field in _MAY_DIFFER or field.split(".")[0] in _MAY_DIFFER


def _replaceable(name: str) -> bool:
    # The mask token for patches belongs to the head that predicts them.
    apart = ("heads.", "pooler.", "mask_token")
    return without_part_prefix(name).startswith(apart) or is_factor(name)
