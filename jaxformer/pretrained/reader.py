"""Opens Hugging Face checkpoints: the description and the locations of the parameters."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxformer.distributed.sharding import parameter_shardings
from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import HFCheckpoint, check_sizes, warn_about_ignored_fields
from jaxformer.hub.peft.config import read_peft_config
from jaxformer.hub.peft.files import is_in_out
from jaxformer.hub.peft.tensors import Base, adapted_tensors
from jaxformer.hub.weights.fitting import (
    embedding_tensor,
    fitted_to_tensors,
    head_tensor,
    missing_parts_message,
    tied_tables,
    without_missing_parts,
)
from jaxformer.hub.weights.names import KnownNames, spellings
from jaxformer.hub.weights.opening import open_tensors
from jaxformer.hub.weights.parts import absent_parts, parts_without
from jaxformer.hub.weights.tensors import Tensor, Tensors
from jaxformer.hub.weights.views.fused_experts import names_of_experts
from jaxformer.hub.weights.weight_file import (
    WeightFile,
    described,
    load_parameters,
    named_placements,
    tensor_of,
)
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.io.notices import warn_once
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.zoo.folders import read_folder


class CheckpointReader(NamedTuple):
    """Reads the parameters of a Hugging Face checkpoint one by one."""

    checkpoint: HFCheckpoint
    abstract_model: AbstractModel
    file: WeightFile
    placements: list[Placement]
    """The tensors, with the parameters in each."""
    adapted: frozenset[str] = frozenset()
    """The parameters with merged low-rank factors of an adapter."""
    changed: frozenset[str] = frozenset()
    """All parameters changed by an adapter."""

    def read(self, name: str) -> np.ndarray:
        """Returns a parameter, by our name, in the dtype of most of its tensors."""
        return self.file.read(name, self.abstract_model.shapes[name].shape)


class _Structure(NamedTuple):
    """A description fitted to some files, and the tensors of the files."""

    checkpoint: HFCheckpoint
    abstract_model: AbstractModel
    placements: list[Placement]

    @classmethod
    def of(
        cls, checkpoint: HFCheckpoint, files: Tensors, fields: Mapping[str, Any]
    ) -> "_Structure":
        checkpoint = fitted_to_tensors(checkpoint, files)
        checkpoint = replace(checkpoint, config=checkpoint.config.with_fields(**fields))
        config, abstract_model = checkpoint.config, AbstractModel(checkpoint.config.build)
        placements = named_placements(
            checkpoint.model_format, config, abstract_model, checkpoint.prefix
        )
        return cls(checkpoint, abstract_model, placements)

    def lacking(self, files: Tensors) -> tuple[str, ...]:
        """Returns the heads and poolers that are entirely missing from the files."""
        known = KnownNames(files.tensors, self.checkpoint.model_format)
        found = known.find_all([each.tensor for each in self.placements])
        return parts_without(self.placements, lambda each: each.tensor in found)


def open_folder(
    folder: Path,
    may_lack_parts: bool = False,
    architecture: str | None = None,
    adapter: Path | None = None,
    strict: bool = False,
    **model_fields: Any,
) -> CheckpointReader:
    """Returns a reader of a Hugging Face checkpoint; locates every tensor without reading it.

    Warns if config.json names a class with heads but the files have only the body.
    """
    checkpoint = read_folder(folder, strict, architecture)
    warn_about_ignored_fields(checkpoint.hf_config)
    files = open_tensors(Path(folder), checkpoint)
    check_sizes(checkpoint, files)
    found = _Structure.of(checkpoint, files, model_fields)
    lost = {}
    while not may_lack_parts and (lacking := found.lacking(files)):
        other = without_missing_parts(
            found.checkpoint, lacking, may_change_class=architecture is None
        )
        if other is None:
            break
        found = _Structure.of(other, files, model_fields)
        lost |= dict.fromkeys(lacking)
    if lost:
        warn_once(f"{folder}: {missing_parts_message(checkpoint, found.checkpoint, tuple(lost))}")
    opened = _opened(found, files, may_lack_parts)
    if adapter is None:
        return opened
    file = opened.file
    return open_adapted(
        opened.checkpoint, opened.placements, file.described, file.tensor, adapter, may_lack_parts
    )


def _opened(found: _Structure, files: Tensors, may_lack_parts: bool) -> CheckpointReader:
    checkpoint, abstract_model, placements = found
    model_format = checkpoint.model_format
    absent = absent_parts(model_format, checkpoint.config, abstract_model)
    absent += files.unused
    file = WeightFile(files, model_format, placements, absent, may_lack_parts=may_lack_parts)
    return CheckpointReader(checkpoint, abstract_model, file, placements)


class Loaded(Protocol):
    """A model with its weights: a `Pretrained`."""

    checkpoint: HFCheckpoint
    placements: list[Placement]
    parameters: Parameters


def open_adapted(
    checkpoint: HFCheckpoint,
    placements: list[Placement],
    tensors: Mapping[str, Tensor],
    read: Callable[[str], np.ndarray],
    adapter: Path,
    may_lack_parts: bool = False,
    weight: float = 1.0,
) -> CheckpointReader:
    """Returns a reader of a model with a PEFT adapter merged into its weights.

    Its structure may differ from the base: a larger vocabulary, an untied head, other layers.
    """
    weight_map = checkpoint.model_format.weight_map(checkpoint.config)
    names = weight_map.names
    tied = next(tied_tables(checkpoint), None) if not checkpoint.config.parts else None
    prefix = checkpoint.model_format.prefix
    table = next((t for t in spellings(embedding_tensor(names), prefix) if t in tensors), "")
    head = tied.head if tied and tied.head not in tensors else ""
    own = next((t for t in spellings(head_tensor(names), prefix) if t in tensors), "")
    in_out = frozenset(each.tensor for each in placements if is_in_out(each))
    experts = names_of_experts(weight_map)
    base = Base(tensors, read, checkpoint.model_format, in_out, table, head, own, experts)
    files = adapted_tensors(adapter, base, weight)
    config = checkpoint.config
    if table and files.tensors[table].shape[0] != tensors[table].shape[0]:
        config = config.with_fields(vocab_size=files.tensors[table].shape[0])
    if layers := read_peft_config(adapter).layers:
        check_replicable(adapter, config)
        config = config.with_fields(num_layers=len(layers))
    found = _Structure.of(replace(checkpoint, config=config), files, {})
    opened = _opened(found, files, may_lack_parts)

    def parameters_in(tensors: frozenset[str]) -> frozenset[str]:
        names = opened.file.names
        inside = (each for each in found.placements if names.get(each.tensor) in tensors)
        return frozenset(place.parameter for each in inside for place in each.places)

    return opened._replace(
        adapted=parameters_in(files.adapted), changed=parameters_in(files.changed)
    )


def with_adapter(
    pretrained: Loaded, adapter: Path, mesh: jax.sharding.Mesh | None = None, weight: float = 1.0
) -> Loaded:
    """Returns a model with a PEFT adapter merged into its weights."""
    opened = open_with_adapter(pretrained, adapter, weight)
    structure = opened.abstract_model
    found = pretrained.parameters
    shared = {
        name: array
        for name, array in found.items()
        if name not in opened.changed
        and name in structure.shapes
        and array.shape == structure.shapes[name].shape
    }
    shardings = parameter_shardings(mesh, structure.axes, structure.shapes)
    others = {name: x for name, x in shardings.items() if name not in shared}
    dtype = next(iter(found.values())).dtype.name
    changed = load_parameters(opened.file, structure, others, dtype)
    parameters = {name: (shared | changed)[name] for name in structure.shapes}
    checkpoint = opened.checkpoint
    return replace(
        pretrained,
        config=checkpoint.config,
        parameters=parameters,
        describe=lambda config: replace(checkpoint, config=config),
        layout=None,
    )


def open_with_adapter(pretrained: Loaded, adapter: Path, weight: float = 1.0) -> CheckpointReader:
    """Returns a reader of a model with a merged PEFT adapter; see `with_adapter`."""
    parameters = pretrained.parameters
    placements = pretrained.placements
    placed = {each.tensor: each for each in placements}
    return open_adapted(
        pretrained.checkpoint,
        placements,
        described(parameters, placements),
        lambda name: tensor_of(parameters, placed[name]),
        adapter,
        weight=weight,
    )


def check_replicable(adapter: Path, config: ModelConfig) -> None:
    """Raises ConfigError unless the base is one stack of equal layers, as PEFT requires."""
    if config.is_encoder_decoder or len(getattr(config, "windows", ())) > 1:
        raise ConfigError(
            f"{adapter}: layer_replication: must be for a base with one stack of equal layers, as "
            "PEFT replicates those of Llama, BERT and Falcon; train the adapter without it"
        )
