"""A run that starts from the parameters of another model, perhaps with other heads or layers."""

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
from jaxformer.models.parameters import Parameters, within_part
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.training.step import TrainProgram, TrainState
from jaxformer.training.transfer.layer_choice import Shapes, Sources, chosen_layers

_log = logging.getLogger(__name__)
# Fields in which two models may differ and still use the same parameters.
_MAY_DIFFER = frozenset(
    {
        "heads",
        "dropout",
        "self_attention.dropout",
        "compute_dtype",
        "attention",
        "remat",
        "scan_layers",
    }
    | {"init_std", "depth_scaled_init", "interpolate_positions"}
    | {"logit_bias", "logit_scale", "max_logit_scale"}
)


@dataclass(frozen=True)
class Transfer:
    """Which parameters of another model a model starts from, by their names."""

    origin: Checkpoint
    """The other model."""
    model: ModelConfig
    """The model, which may fit a parameter to itself."""
    sources: Sources
    """What the other model has for each parameter."""
    taken: tuple[str, ...]
    """Those with the values of the other model."""
    new: tuple[str, ...]
    """Those that only this model has: they keep their initial values."""
    left: tuple[str, ...]
    """Those that only the other model has."""
    merged: int
    """How many of those taken are kernels that learned through low-rank factors there."""
    resized: tuple[str, ...]
    """Those taken with other values than there: learned positions for another image size."""
    layers: tuple[int, ...] | None
    """The other model's layers that become this one's; None: all of them."""
    differences: tuple[str, ...]
    """In what else the models differ."""

    @classmethod
    def of(
        cls,
        origin: Checkpoint,
        model: ModelConfig,
        shapes: Shapes,
        layers: tuple[int, ...] | None = None,
    ) -> "Transfer":
        """Decides which parameters are taken; reads none.

        Heads and the pooler may be missing on either side, and a head of another shape counts as
        missing on both. The averaged parameters of a run are taken, where it has them; low-rank
        factors are multiplied out. Factors here are new.
        """
        here = {name: shape for name, shape in shapes.items() if not name.endswith(SCALES)}
        origin.add_parts(model)
        sources = Sources.of(origin.shapes)
        if layers is not None:
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
        """Returns fresh parameters, sharded as they are, with the values that are taken."""
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
        """Returns a fresh state with the parameters that are taken, and reports which they are."""
        params = self.apply(state.params)
        if is_first():
            print(self.report)
            _warn_of_frozen(self.new, program)
        ema = None if state.ema is None else {name: jnp.copy(params[name]) for name in state.ema}
        return replace(state, params=params, ema=ema)

    @property
    def report(self) -> str:
        """Which parameters are taken, which are new, and which are left."""
        merged = f", {self.merged} of them with their low-rank factors" if self.merged else ""
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
    """Warns of new parameters that low-rank training freezes at their random values."""
    if program.train.lora is None:
        return
    able = frozenset(program.abstract_model.base.learning) - frozenset(program.trained)
    frozen = [name for name in new if name in able]
    if frozen:
        _log.warning(
            "%s: new here and frozen, so random forever: name what shall learn besides the factors "
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
        else f"{name} is not there"
        for name in sorted(fixed, key=lambda name: name not in there)
    ]
    if problems:
        reasons = f" ({'; '.join(differences)})" if differences else ""
        raise ConfigError(
            f"--init-from {folder}: the models differ in more than their heads{reasons}: "
            f"{'; '.join(problems[:4])}{f' and {len(problems) - 4} more' if problems[4:] else ''}; "
            "a config without a model takes the checkpoint's: pretrain, sft, finetune_..."
        )


def _differences(there: ModelConfig, here: ModelConfig) -> tuple[str, ...]:
    """The fields that say what parameters there are and what they mean."""
    return tuple(
        f"model.{name} is {old!r} there, {new!r} here"
        for name, (old, new) in diff(there, here).items()
        if _MAY_DIFFER.isdisjoint({within_part(name), within_part(name).split(".")[0]})
    )


def _replaceable(name: str) -> bool:
    # The token for hidden patches is of the head that predicts them.
    apart = ("heads.", "pooler.", "mask_token")
    return within_part(name).startswith(apart) or is_factor(name)
