"""Completes a model's description from the tensors in its files, as in transformers."""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks.classes import MaskedLMTask, Task, TokenClassificationTask
from jaxformer.hub.weights.names import KnownNames
from jaxformer.hub.weights.tensors import Tensors, same, warn_about_unused_biases
from jaxformer.io.notices import warn_once
from jaxformer.models.model import ModelConfig

_HEAD = re.compile(r"(?:(\w+)\.)?heads\.((?:masked_)?language_model)(?:\.kernel)?")
_POOLER = "pooler"


def fitted_to_tensors(checkpoint: HFCheckpoint, files: Tensors) -> HFCheckpoint:
    """Returns the description, completed with fields that only the tensors determine.

    Warns if a head differs from the embedding table that config.json ties it to.
    """
    model_format = checkpoint.model_format
    config = model_format.fitted(checkpoint.config, files)
    known = KnownNames(files.tensors, model_format)
    for untied, *pair in tied_tables(replace(checkpoint, config=config)):
        head, table = map(known.find, pair)
        ignored = head is None or any(fnmatch.fnmatchcase(head, each) for each in files.unused)
        if not ignored and table and not same(files, head, table):
            config = untied
            warn_once(
                f"{files.folder}: {head} differs from {table}, so they are not tied, as in "
                "transformers, although tie_word_embeddings is true"
            )
    for unread, counts in model_format.weight_map(config).twins.items():
        first, second = known.find(unread), known.find(counts)
        if first and second:
            config = config.with_fields(heads=tuple(map(_with_unread_bias, config.heads)))
            warn_about_unused_biases(files, [] if same(files, first, second) else [first])
    return replace(checkpoint, config=config)


class TiedTables(NamedTuple):
    """A head that is tied to the embedding table."""

    untied: ModelConfig
    """The same model without tying."""
    head: str
    """The tensor of the head when untied."""
    table: str
    """The tensor of the embedding table."""


def tied_tables(checkpoint: HFCheckpoint) -> Iterator[TiedTables]:
    """Yields the tied heads of a model and its parts."""
    config = checkpoint.config
    model_format = checkpoint.model_format
    for name, part in (config.parts or {"": config}).items():
        heads = any(head.over_vocabulary for head in part.heads)
        if heads and getattr(part, "tie_embeddings", False):
            other = part.with_fields(tie_embeddings=False)
            untied = replace(config, **{name: other}) if name else other
            names = model_format.weight_map(untied).names
            start = f"{name}." if name else ""
            yield TiedTables(untied, head_tensor(names, start), embedding_tensor(names, start))


def head_tensor(names: Mapping[str, str], part: str = "") -> str:
    """Returns the name of the head's tensor in a weight map."""
    found = [(path, tensor) for path, tensor in names.items() if _HEAD.fullmatch(path)]
    of_part = [(path, tensor) for path, tensor in found if path.startswith(f"{part}heads.")]
    return next((_weight(path, tensor, ".kernel") for path, tensor in of_part), "")


def embedding_tensor(names: Mapping[str, str], part: str = "") -> str:
    """Returns the name of the embedding table's tensor in a weight map."""
    modules = [f"{part}{name}" for name in ("decoder_embedding", "embedding")]
    paths = [path for module in modules for path in (f"{module}.table", module)]
    return next((_weight(path, names[path], ".table") for path in paths if path in names), "")


def _weight(path: str, tensor: str, leaf: str) -> str:
    return tensor if path.endswith(leaf) else f"{tensor}.weight"


def _with_unread_bias(head: Any) -> Any:
    return replace(head, unread_bias=True) if hasattr(head, "unread_bias") else head


def without_missing_parts(
    checkpoint: HFCheckpoint, lacking: Sequence[str], may_change_class: bool
) -> HFCheckpoint | None:
    """Returns the description without the `lacking` parts, or None if the model needs them.

    A body often has the class name of its pre-training: then its pre-training heads are left out,
    with another class. An unused pooler is also left out. Other heads are required.
    """
    heads = {part.removeprefix("heads.") for part in lacking} - {_POOLER}
    task = checkpoint.architecture.task
    if heads and task.pre_trains and may_change_class:
        kept = {head.name for head in checkpoint.config.heads} - heads
        return _of_class(checkpoint, _class_with(checkpoint, kept))
    reads_none = type(task) is Task or isinstance(task, MaskedLMTask | TokenClassificationTask)
    if heads or not reads_none:
        return None
    return replace(checkpoint, config=checkpoint.config.with_fields(pooler=None))


def _class_with(checkpoint: HFCheckpoint, heads: set[str]) -> Architecture:
    """Returns the class with these heads, or else the class without heads."""
    model_format = checkpoint.model_format
    values = checkpoint.hf_config.values
    for each in model_format.classes(values):
        names = {head.name for head in each.task.heads(checkpoint.hf_config)}
        if names == heads and (each.task.pre_trains or type(each.task) is Task):
            return each
    return next(each for each in model_format.architectures if type(each.task) is Task)


def _of_class(checkpoint: HFCheckpoint, architecture: Architecture) -> HFCheckpoint:
    hf_config = checkpoint.hf_config.with_values(architectures=[architecture.name])
    config = checkpoint.model_format.config_map.read(hf_config).with_fields(
        heads=architecture.task.heads(hf_config), **architecture.changes
    )
    return replace(checkpoint, architecture=architecture, hf_config=hf_config, config=config)


def missing_parts_message(before: HFCheckpoint, after: HFCheckpoint, lacking: Sequence[str]) -> str:
    """Describes the class that is read because the files lack parts of another class."""
    parts = ", ".join(part.removeprefix("heads.") for part in lacking)
    named = before.architecture.name
    read = after.architecture.name
    pooler = "" if getattr(after.config, _POOLER, "") is not None else " without a pooler"
    return (
        f"the files lack parts of {named} ({parts}), so {read} is read{pooler}; architecture (in "
        "load, or --architecture) chooses a class"
    )
