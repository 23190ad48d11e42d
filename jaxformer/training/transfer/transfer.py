"""A run that starts from the parameters of another model, perhaps with other heads or layers."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.config.experiment import Config
from jaxformer.distributed.processes import placed
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import diff
from jaxformer.models import VisionConfig
from jaxformer.models.frozen import SCALES, stored
from jaxformer.models.lora import is_factor
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters, within_part
from jaxformer.training.transfer.layer_choice import Shapes, Sources, chosen_layers
from jaxformer.training.transfer.origin import (
    SavedFolder,
    check_tokenizer_of,
    open_saved,
    origin_folder,
)

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
    """The result of a transfer, by the names of the parameters."""

    taken: tuple[str, ...]
    """Those with the values of the other run."""
    new: tuple[str, ...]
    """Those that only this model has: they keep their initial values."""
    left: tuple[str, ...]
    """Those that only the other model has."""
    merged: int = 0
    """How many of those taken are kernels that learned through low-rank factors there."""
    resized: tuple[str, ...] = ()
    """Those taken with other values than there: learned positions for another image size."""
    layers: tuple[int, ...] | None = None
    """The other model's layers that became this one's; None: all of them."""
    differences: tuple[str, ...] = ()
    """In what the models differ besides, in words."""

    def in_words(self, folder: str) -> str:
        """The report: which parameters were taken, which are new, which were left."""
        merged = f", {self.merged} of them with their low-rank factors" if self.merged else ""
        lines = [f"parameters from {folder}: {len(self.taken)} taken{merged}"]
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


def check_transfer(config: Config) -> None:
    """Checks that a run can start from the model that it names, before its data are read.

    Args:
        config: The experiment, resolved, with `init_from`.

    Raises:
        ConfigError: As `transfer` and `check_same_tokens` would after the data are prepared.
    """
    folder, model = origin_folder(config.init_from), config.model
    here = {name: shape.shape for name, shape in AbstractModel(model.build).shapes.items()}
    saved, sources = _opened(here, folder, model, config.init_layers)
    differences = _differences(saved.model, model)
    taken = {
        name
        for name in here
        if name in sources.shapes
        and here[name] == _adapted_shape(name, sources.shapes[name], model, saved.model)
    }
    _check_rest(folder, here, sources.shapes, taken, differences)
    check_tokenizer_of(config, folder)


def transfer(
    params: Parameters, folder: Path, model: ModelConfig, layers: tuple[int, ...] | None = None
) -> tuple[Parameters, Transfer]:
    """Replaces fresh parameters by those of another run or of a Hugging Face checkpoint.

    Heads and the pooler may be missing on either side, and a head of another shape counts as
    missing on both. The averaged parameters of the other run are taken, where it has them; low-rank
    factors are multiplied out. Factors here are new.

    Args:
        params: Fresh parameters, sharded as they shall stay.
        folder: The other run's folder, or a Hugging Face checkpoint.
        model: This run's, which may fit a parameter to itself.
        layers: Which of the other model's layers become this one's, from 0; None: all.

    Returns:
        The parameters, and what became of them.

    Raises:
        ConfigError: The folder is not a run (nor a Hugging Face checkpoint), the models
            differ in more than their heads (names the parameters), or the layers cannot be chosen.
    """
    here = {name: array.shape for name, array in params.items() if not name.endswith(SCALES)}
    saved, sources = _opened(here, folder, model, layers)
    both = [name for name in here if name in sources.shapes]
    arrays = saved.read({there for name in both for there in sources.read_for(name)})
    found = {name: sources.array(name, arrays) for name in both}
    values = {name: model.adapted(name, found[name], saved.model) for name in both}
    taken = [name for name in both if values[name].shape == here[name]]
    differences = _differences(saved.model, model)
    _check_rest(folder, here, sources.shapes, set(taken), differences)
    report = Transfer(
        taken=tuple(taken),
        new=tuple(name for name in here if name not in taken),
        left=tuple(name for name in sources.shapes if name not in taken),
        merged=len(saved.adapted & set(arrays)),
        resized=tuple(name for name in taken if values[name] is not found[name]),
        layers=layers,
        differences=differences,
    )
    ours = {
        part: placed(np.asarray(array), params[part].sharding)
        for name in taken
        for part, array in stored(name, values[name], params).items()
    }
    return params | ours, report


def _opened(
    here: Shapes, folder: Path, model: ModelConfig, layers: tuple[int, ...] | None
) -> tuple[SavedRun | SavedFolder, Sources]:
    """The other model, and what it offers for the parameters of this one."""
    saved = open_saved(
        folder,
        "--init-from",
        may_lack_parts=True,
        images_alone=isinstance(model, VisionConfig),
    )
    saved.add_parts(model)
    if layers is None:
        return saved, Sources.of(saved.shapes)
    return saved, chosen_layers(here, saved, layers, model.layer_kinds)


def _adapted_shape(
    name: str, shape: tuple[int, ...], model: ModelConfig, source: ModelConfig
) -> tuple[int, ...]:
    """The shape that a parameter of the other model has once it is fitted to this one."""
    return model.adapted(name, np.broadcast_to(np.float32(0), shape), source).shape


def _check_rest(
    folder: Path, here: Shapes, there: Shapes, taken: set[str], differences: tuple[str, ...]
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
