"""Fills in fields of an experiment from the checkpoint it starts from: model, heads, length."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_dir import CHECKPOINTS, CONFIG_FILE, read_config
from jaxformer.config.experiment import Config
from jaxformer.data import TokenizerFile, TrainTokenizer
from jaxformer.data.tasks.images.labelled import FORM, Images
from jaxformer.data.tasks.sounds.features import LogMel
from jaxformer.data.tasks.sounds.labelled import LabelledClips
from jaxformer.data.tasks.sounds.speech_to_text import SpeechToText
from jaxformer.data.tokenizers.files import read_settings
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.remote.names import hub_name, source_of
from jaxformer.hub.tasks.label_names import label_names
from jaxformer.io.components import with_values
from jaxformer.io.paths import AnyPath
from jaxformer.io.serialization import diff
from jaxformer.io.staging import name_of
from jaxformer.models import Classification, Head, MaskedLanguageModel
from jaxformer.models.heads.base import head_class
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import without_part_prefix
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.training.transfer.data_form import (
    pretraining_objective,
    with_image_form,
    with_sound_form,
    with_transcripts,
)
from jaxformer.training.transfer.origin import open_named

_LENGTHS = ("max_position_embeddings", "n_positions")
"""Fields of config.json with the maximum number of tokens of a model."""


def from_origin(
    config: Config, folder: AnyPath | None, labels_needed: bool
) -> tuple[Config, Checkpoint | None]:
    """Returns an experiment with open fields filled in from its checkpoint, and the checkpoint."""
    began = read_config(folder) if folder and (folder / CONFIG_FILE).exists() else None
    named = hub_name(config.init_from)
    pinned = _commit_of(began, config.init_from)
    if pinned is not None and named.revision is None:
        config = replace(config, init_from=pinned)
    try:
        origin = open_named(
            config.init_from,
            "init_from",
            may_lack_parts=True,
            images_alone=config.data.images_alone,
            sounds_alone=isinstance(config.data, LabelledClips),
        )
    except ConfigError:
        if folder is None or not saved_steps(folder / CHECKPOINTS):
            raise
        continued = _continued(replace(config, init_from=pinned or config.init_from), began)
        if continued is None:
            raise
        return continued, None
    if named is not None and (source := source_of(origin.folder)) is not None:
        config = replace(config, init_from=str(source))
    config = _with_objective(_with_tokenizer(config, origin, began), origin)
    open_length = getattr(config.data, "sequence_length", 0) is None
    if isinstance(config.data, LabelledClips) and config.data.form is None:
        config = with_sound_form(config, origin)
    taught = head_class(config.data.head)
    model_is_open, count = config.model is None, None
    if taught is not None and taught.named_labels:
        config, count = _with_labels(config, origin, labels_needed)
    if model_is_open:
        config = replace(config, model=model_for(origin.description, config.data.head, count))
    if isinstance(config.data, Images) and config.data.form_is_open:
        config = with_image_form(config, origin, model_is_open)
    if isinstance(config.data, SpeechToText):
        config = with_transcripts(config, origin)
    config = _with_decoder(config, origin)
    return (_with_length(config, origin) if open_length else config), origin


def model_for(checkpoint: HFCheckpoint, head: str, count: int | None) -> ModelConfig:
    """Returns a checkpoint's model with the head for the data, with `count` labels if any."""
    model = checkpoint.config
    model_format = checkpoint.model_format
    architecture = _architecture(checkpoint, head)
    if architecture is None:
        return model.with_fields(heads=_kept(_fresh_heads(model, head, count), model))
    values = checkpoint.hf_config.values
    if count is not None:
        values = values | {"id2label": {str(number): str(number) for number in range(count)}}
    heads = architecture.task.heads_for(head, HFConfig(values, checkpoint.hf_config.path))
    if architecture == checkpoint.architecture:
        return model.with_fields(heads=_kept(heads, model))
    body = model_format.config_map.read(checkpoint.hf_config)
    changes = {
        name: architecture.changes.get(name, getattr(body, name))
        for each in model_format.classes(values)
        for name in each.changes
    }
    return model.with_fields(**changes, heads=_kept(heads, model))


def origin_report(config: Config, origin: Checkpoint, labels: Sequence[str]) -> str:
    """Describes in one line which model a run starts from and what was changed."""
    description = origin.description
    model = model_for(description, config.data.head, len(labels) or None)
    parts = [f"{description.architecture.name} of {config.init_from}"]
    changed = [
        f"{name} {old} -> {new}"
        for name, (old, new) in diff(model, config.model).items()
        if not without_part_prefix(name).startswith("heads")
    ]
    parts += [f"changed: {', '.join(changed)}"] if changed else []
    there = {(head.name, head.num_labels) for head in description.config.heads}
    fresh = [head for head in config.model.heads if (head.name, head.num_labels) not in there]
    if fresh:
        others = ", ".join(map(_shown, description.config.heads)) or "none"
        parts.append(
            f"head: {', '.join(map(_shown, fresh))}, newly initialized (checkpoint: {others})"
        )
    return "; ".join(parts)


def _commit_of(began: Config | None, init_from: str) -> str | None:
    """Returns the hub commit that a run began with, if `init_from` names that model."""
    named = hub_name(init_from)
    if began is None or named is None or named.is_commit or Path(init_from).expanduser().exists():
        return None
    before = hub_name(began.init_from)
    same = before is not None and before.is_commit and before.repo == named.repo
    return str(before) if same else None


def _continued(config: Config, began: Config) -> Config | None:
    """Returns the experiment with the fields of its run, whose original checkpoint is gone."""
    if began.init_from != config.init_from:
        return None
    left_open = {"sequence_length": None, "label_order": (), "objective": None, "form": None}
    left_open |= {"prefix": (), "features": LogMel()}
    left_open |= dict.fromkeys(FORM)
    data = {
        name: getattr(began.data, name)
        for name, value in left_open.items()
        if getattr(config.data, name, ...) == value and hasattr(began.data, name)
    }
    if isinstance(getattr(config.data, "tokenizer", None), TrainTokenizer):
        data["tokenizer"] = began.data.tokenizer
    return replace(config, model=config.model or began.model, data=replace(config.data, **data))


def _with_tokenizer(config: Config, origin: Checkpoint, began: Config | None) -> Config:
    """Returns the experiment with the tokenizer of the checkpoint, unless it names one."""
    trains = isinstance(getattr(config.data, "tokenizer", None), TrainTokenizer)
    folder = origin.tokenizer_folder if trains else None
    if folder is None:
        return config
    tokenizer = TokenizerFile(name_of(folder))
    before = None if began is None else getattr(began.data, "tokenizer", None)
    # A run that began with the same commit, in another cache, keeps its path.
    if isinstance(before, TokenizerFile) and (source := source_of(folder)) is not None:
        tokenizer = before if source_of(Path(before.path)) == source else tokenizer
    return with_values(config, {"data.tokenizer": tokenizer})


def _with_objective(config: Config, origin: Checkpoint) -> Config:
    """Returns the experiment with its objective, by default that of the checkpoint."""
    data: Any = config.data
    if getattr(data, "objective", ...) is not None:
        return config
    if isinstance(data.tokenizer, TrainTokenizer):
        raise ConfigError(
            f"data.objective = None: {config.init_from} has no tokenizer, so its training "
            "objective is unknown; name a tokenizer with --data.tokenizer TokenizerFile"
        )
    model = config.model or origin.model
    objective = pretraining_objective(model, data.tokenizer.fit(()))
    return with_values(config, {"data.objective": objective})


def _with_labels(config: Config, origin: Checkpoint, needed: bool) -> tuple[Config, int | None]:
    """Returns the experiment with its labels in the order of the checkpoint, and their number."""
    theirs = label_names(origin.description.hf_config.values)
    order = getattr(config.data, "label_order", ())
    if config.model is not None and (order or not theirs):
        return config, None
    try:
        labels = config.data.training_labels()
    except DataError:
        if needed:
            raise
        return config, None
    places = {name.casefold(): number for number, name in enumerate(theirs)}
    same = len(labels) == len(places) and {name.casefold() for name in labels} == places.keys()
    ordered = tuple(sorted(labels, key=lambda name: places[name.casefold()])) if same else labels
    if not order and ordered != labels:
        config = with_values(config, {"data.label_order": ordered})
    return config, len(labels)


def _with_decoder(config: Config, origin: Checkpoint) -> Config:
    """Returns the experiment with decoder inputs for labels if its model is an encoder-decoder."""
    data: Any = config.data
    if not config.model.is_encoder_decoder or getattr(data, "decoder_start", "") is not None:
        return config
    values = origin.description.hf_config.values
    first = values.get("decoder_start_token_id")
    end = values.get("eos_token_id")
    start = "end_of_text" if first is not None and first == end else "pad"
    return with_values(config, {"data.decoder_start": start})


def _with_length(config: Config, origin: Checkpoint) -> Config:
    """Returns the experiment with rows as long as the model and the tokenizer support."""
    values = origin.description.hf_config.values
    settings = read_settings(origin.home)
    limits = [getattr(config.model.position, "max_length", None), settings.get("model_max_length")]
    limits += [values.get(name) for name in _LENGTHS]
    known = [int(limit) for limit in limits if isinstance(limit, int | float) and limit >= 1]
    length = min(config.data.longest_row, *known)
    return replace(config, data=config.data.of_length(length))


def _architecture(checkpoint: HFCheckpoint, head: str) -> Architecture | None:
    """Returns an architecture with this kind of head, preferably the checkpoint's, or None."""
    own = checkpoint.architecture
    alike = checkpoint.model_format.classes(checkpoint.hf_config.values)
    for each in sorted(alike, key=lambda each: each != own):
        if each.task.teaches(head):
            return each
    return None


def _fresh_heads(model: ModelConfig, head: str, count: int | None) -> tuple[Head, ...]:
    """Returns new heads for a model without a corresponding class in transformers."""
    if head in ("next_sentence", "sentence_order"):
        return (MaskedLanguageModel(), Classification(label=head))
    kind = head_class(head)
    return model.heads if kind is None else (kind.for_model(model, count),)


def _kept(heads: tuple[Head, ...], model: ModelConfig) -> tuple[Head, ...]:
    """Returns the model's heads if they have these kinds and sizes."""
    alike = [(type(head), head.num_labels) for head in heads]
    return model.heads if alike == [(type(x), x.num_labels) for x in model.heads] else heads


def _shown(head: Head) -> str:
    count = "" if head.num_labels is None else f" of {head.num_labels} labels"
    return f"{type(head).__name__}{count}"
