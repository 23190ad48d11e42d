"""What an experiment leaves to the checkpoint it starts from: the model, its head, its length."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_dir import CHECKPOINTS, read_config
from jaxformer.config.experiment import Config
from jaxformer.data import TrainTokenizer
from jaxformer.data.tokenizers.files import read_settings
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks.classes import (
    CausalLMTask,
    MaskedLMTask,
    PreTrainingTask,
    QuestionAnsweringTask,
    Seq2SeqLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.tasks.dual_encoders import ContrastiveTask
from jaxformer.hub.tasks.images import MaskedAutoencoderTask, MaskedPixelsTask
from jaxformer.hub.tasks.label_names import ONE_LABEL, SEVERAL_LABELS, label_names
from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.io.serialization import diff
from jaxformer.models import (
    Classification,
    Head,
    LanguageModel,
    MaskedLanguageModel,
    MultiLabel,
    MultipleChoice,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import within_part
from jaxformer.training.transfer.image_form import FORM, leaves_form_open, with_form
from jaxformer.training.transfer.objective import pretraining_objective
from jaxformer.training.transfer.origin import (
    Origin,
    model_of,
    open_origin,
    origin_folder,
    with_commit,
    with_tokenizer_of_origin,
)

_TASKS: dict[str, tuple[type[Task], ...]] = {
    "language_model": (CausalLMTask, Seq2SeqLMTask),
    "masked_language_model": (MaskedLMTask,),
    "next_sentence": (PreTrainingTask,),
    "sentence_order": (PreTrainingTask,),
    "classification": (SequenceClassificationTask,),
    "multi_label": (SequenceClassificationTask,),
    "regression": (SequenceClassificationTask,),
    "multiple_choice": (MultipleChoiceTask,),
    "token_classification": (TokenClassificationTask,),
    "span": (QuestionAnsweringTask,),
    "masked_pixels": (MaskedPixelsTask, MaskedAutoencoderTask),
    "contrastive": (ContrastiveTask,),
}
"""What data teach -> the tasks of the classes with such a head."""
_LABELLED = ("classification", "multi_label", "token_classification")
_PROBLEMS = {"classification": ONE_LABEL, "multi_label": SEVERAL_LABELS}
"""What data teach -> the `problem_type` of a classifier."""
_LENGTHS = ("max_position_embeddings", "n_positions")
"""Fields of config.json with the most tokens that a model was made for."""


def resolved(config: Config, folder: Path | None = None, *, labels_needed: bool = True) -> Config:
    """Returns the experiment with all that it leaves to the checkpoint it starts from.

    A model that is None becomes the checkpoint's, with the head that the data teach; a tokenizer
    that would be trained becomes the checkpoint's; an objective that is None becomes the one that
    the checkpoint was trained with; a `sequence_length` that is None becomes as many tokens as
    model and tokenizer take; labels that are the checkpoint's keep their numbers. The name of a
    model on the hub gets the commit that it stands for.

    Args:
        config: The experiment.
        folder: The run's; a run that is continued does not need the checkpoint any more.
        labels_needed: Whether the labels of the training data must be there; False leaves the
            number of labels to the checkpoint where they are not, for `--help`.

    Returns:
        The experiment, the same one if nothing was left open.

    Raises:
        ConfigError: The checkpoint cannot be used.
        DataError: The labels of the training data are needed and cannot be read.
    """
    config = _as_found(with_commit(config, folder), labels_needed)
    if (continued := _continued(config, folder)) is not None:
        return continued
    config = _with_objective(with_tokenizer_of_origin(config, folder))
    open_length = getattr(config.data, "sequence_length", 0) is None
    labelled, model_is_open = config.data.head in _LABELLED, config.model is None
    open_form = leaves_form_open(config.data)
    if config.init_from is None:
        if open_form and not model_is_open:
            raise ConfigError(
                "data.image_size, channels, mean, std, scaling = None: must be given, or are those "
                "of a checkpoint; name one with --init-from DIR"
            )
        return _with_length(config, None) if open_length and config.model else config
    if not (model_is_open or open_length or open_form or labelled):
        return config
    origin, count = open_origin(config.init_from, config.data.images_alone), None
    if labelled:
        config, count = _with_labels(config, origin, labels_needed)
    if model_is_open:
        config = replace(config, model=model_for(origin.checkpoint, config.data.head, count))
    if open_form:
        config = with_form(config, origin, model_is_open)
    config = _with_decoder(config, origin)
    return _with_length(config, origin) if open_length else config


def model_for(checkpoint: HFCheckpoint, head: str, count: int | None) -> ModelConfig:
    """Returns a checkpoint's model with the head that some data teach.

    A head of that kind and size is kept. Another is the one of the class that its system has in
    transformers, such as BertForSequenceClassification.

    Args:
        checkpoint: The checkpoint's description.
        head: What the data teach, see `Data.head`.
        count: How many labels the data have; None: as many as the checkpoint.

    Returns:
        The model.
    """
    model, model_format = checkpoint.config, checkpoint.model_format
    architecture = _architecture(checkpoint, head)
    if architecture is None:
        return model.with_fields(heads=_kept(_plain_heads(model, head, count), model))
    values = checkpoint.hf_config.values
    if count is not None:
        values = values | {"id2label": {str(number): str(number) for number in range(count)}}
    if head in _PROBLEMS:
        values = values | {"problem_type": _PROBLEMS[head]}
    heads = architecture.task.heads(HFConfig(values, checkpoint.hf_config.path))
    if head == "regression":
        heads = tuple(_as_regression(each) for each in heads)
    if architecture == checkpoint.architecture:
        return model.with_fields(heads=_kept(heads, model))
    body = model_format.config_map.read(checkpoint.hf_config)
    changes = {
        name: architecture.changes.get(name, getattr(body, name))
        for each in model_format.classes(values)
        for name in each.changes
    }
    return model.with_fields(**changes, heads=_kept(heads, model))


def origin_words(config: Config, labels: Sequence[str]) -> str | None:
    """Returns in words which model a run starts from, and what was changed.

    Args:
        config: The experiment, resolved.
        labels: The labels of its data.

    Returns:
        The words; None for a run that starts from nothing, or whose origin is gone.
    """
    try:
        if config.init_from is None:
            return None
        origin = open_origin(config.init_from, config.data.images_alone)
    except ConfigError:
        return None  # a run that is continued does not need it
    checkpoint, theirs = origin.checkpoint, origin.checkpoint.config.heads
    model = model_for(checkpoint, config.data.head, len(labels) or None)
    words = [f"{checkpoint.architecture.name} of {config.init_from}"]
    changed = [
        f"{name} {old} -> {new}"
        for name, (old, new) in diff(model, config.model).items()
        if not within_part(name).startswith("heads")
    ]
    words += [f"changed: {', '.join(changed)}"] if changed else []
    there = {(head.name, head.num_labels) for head in theirs}
    fresh = [head for head in config.model.heads if (head.name, head.num_labels) not in there]
    if fresh:
        others = ", ".join(map(_head_words, theirs)) or "none"
        words.append(f"head: {', '.join(map(_head_words, fresh))}, starts fresh (there: {others})")
    return "; ".join(words)


def _as_found(config: Config, needed: bool) -> Config:
    """The experiment with what the rows of its data say of themselves: several labels in a row."""
    try:
        data = config.data.as_found()
    except DataError:
        if needed:
            raise
        return config
    return config if data is config.data else replace(config, data=data)


def _continued(config: Config, folder: Path | None) -> Config | None:
    """The experiment as its run began, if that is to be continued and the checkpoint is gone."""
    if config.init_from is None or folder is None or not saved_steps(folder / CHECKPOINTS):
        return None
    try:
        origin_folder(config.init_from)
        return None
    except ConfigError:
        began = read_config(folder)
    if began.init_from != config.init_from:
        return None
    left_open = {"sequence_length": None, "label_order": (), "objective": None}
    left_open |= dict.fromkeys(FORM)
    data = {
        name: getattr(began.data, name)
        for name, value in left_open.items()
        if getattr(config.data, name, ...) == value and hasattr(began.data, name)
    }
    if isinstance(getattr(config.data, "tokenizer", None), TrainTokenizer):
        data["tokenizer"] = began.data.tokenizer
    return replace(config, model=config.model or began.model, data=replace(config.data, **data))


def _with_objective(config: Config) -> Config:
    """The experiment with the objective of the checkpoint's pre-training, unless it names one."""
    data: Any = config.data
    if getattr(data, "objective", ...) is not None:
        return config
    if config.init_from is None:
        raise ConfigError(
            "data.objective = None: must be an objective, such as CausalLM, or that of a "
            "checkpoint; name one with --init-from DIR"
        )
    model = config.model or model_of(config.init_from, "--init-from")
    if isinstance(data.tokenizer, TrainTokenizer):
        raise ConfigError(
            f"data.objective = None: {config.init_from} has no tokenizer, and nothing says on what "
            "it was trained; name a tokenizer with --data.tokenizer TokenizerFile"
        )
    objective = pretraining_objective(model, data.tokenizer.fit(()))
    return replace(config, data=replace(data, objective=objective))


def _with_labels(config: Config, origin: Origin, needed: bool) -> tuple[Config, int | None]:
    """The experiment with its labels in the order of the checkpoint's, and their number."""
    theirs = label_names(origin.checkpoint.hf_config.values)
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
        config = replace(config, data=replace(config.data, label_order=ordered))
    return config, len(labels)


def _with_decoder(config: Config, origin: Origin) -> Config:
    """The experiment whose rows a decoder reads as well, where labels are an encoder-decoder's."""
    data: Any = config.data
    if not config.model.is_encoder_decoder or getattr(data, "decoder_start", "") is not None:
        return config
    values = origin.checkpoint.hf_config.values
    first, end = values.get("decoder_start_token_id"), values.get("eos_token_id")
    start = "end_of_text" if first is not None and first == end else "pad"
    return replace(config, data=replace(data, decoder_start=start))


def _with_length(config: Config, origin: Origin | None) -> Config:
    """The experiment with as long rows as the model and the tokenizer take."""
    values = {} if origin is None else origin.checkpoint.hf_config.values
    settings = {} if origin is None else read_settings(origin.home)
    limits = [getattr(config.model.position, "max_length", None), settings.get("model_max_length")]
    limits += [values.get(name) for name in _LENGTHS]
    known = [int(limit) for limit in limits if isinstance(limit, int | float) and limit >= 1]
    length = min(config.data.longest_row, *known)
    return replace(config, data=config.data.of_length(length))


def _architecture(checkpoint: HFCheckpoint, head: str) -> Architecture | None:
    """The class with such a head, preferably the checkpoint's own; None if there is none."""
    own = checkpoint.architecture
    alike = checkpoint.model_format.classes(checkpoint.hf_config.values)
    for each in sorted(alike, key=lambda each: each != own):
        fits = isinstance(each.task, _TASKS.get(head, ()))
        if fits and getattr(each.task, "label", head) == head:
            return each
    return None


def _plain_heads(model: ModelConfig, head: str, count: int | None) -> tuple[Head, ...]:
    """The heads of a model that no system of transformers has."""
    count = 2 if count is None else count
    pooling = "last" if model.causal else "first" if getattr(model, "class_token", True) else "mean"
    heads: dict[str, tuple[Head, ...]] = {
        "language_model": (LanguageModel(),),
        "masked_language_model": (MaskedLanguageModel(),),
        "classification": (Classification(count, pooling=pooling, bias=not model.causal),),
        "multi_label": (MultiLabel(count, pooling=pooling, bias=not model.causal),),
        "regression": (Regression(pooling=pooling, bias=not model.causal),),
        "multiple_choice": (MultipleChoice(),),
        "token_classification": (TokenClassification(count),),
        "span": (Span(),),
    }
    if head in ("next_sentence", "sentence_order"):
        return (MaskedLanguageModel(), Classification(label=head))
    return heads.get(head, model.heads)


def _kept(heads: tuple[Head, ...], model: ModelConfig) -> tuple[Head, ...]:
    """The model's own heads, if they are of these kinds and sizes."""
    alike = [(type(head), head.num_labels) for head in heads]
    return model.heads if alike == [(type(x), x.num_labels) for x in model.heads] else heads


def _as_regression(head: Classification) -> Regression:
    return Regression(pooling=head.pooling, bias=head.bias, dense=head.dense)


def _head_words(head: Head) -> str:
    count = "" if head.num_labels is None else f" of {head.num_labels} labels"
    return f"{type(head).__name__}{count}"
