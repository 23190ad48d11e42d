"""Models that were made here, described so that they can be asked as transformers' are."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import HFCheckpoint, describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import (
    CausalLMTask,
    MaskedLMTask,
    NextSentenceTask,
    PreTrainingTask,
    QuestionAnsweringTask,
    Seq2SeqLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.models import (
    Classification,
    EncoderDecoderConfig,
    LanguageModel,
    MaskedLanguageModel,
    Span,
    TokenClassification,
)
from jaxformer.models.model import ModelConfig


def describe_model(
    config: ModelConfig, formats: Iterable[ModelFormat], extra: Mapping[str, Any]
) -> HFCheckpoint:
    """The description of a model of ours: as a known system if it is one, else in our own terms.

    Args:
        config: The model.
        formats: The known systems.
        extra: Fields that config.json shall have besides (token ids, names of labels).
    """
    try:
        return describe(config, formats, extra)
    except ConfigError as problem:
        return _in_our_terms(config, str(problem), extra)


def _in_our_terms(config: ModelConfig, problem: str, extra: Mapping[str, Any]) -> HFCheckpoint:
    """A description that can be run and not exported; `problem` says why."""

    def refuse(*_):
        raise ConfigError(problem)

    architecture = Architecture("jaxformer", _task(config))
    model_format = ModelFormat("jaxformer", refuse, refuse, refuse, (architecture,), tiny={})
    return HFCheckpoint(
        model_format, architecture, HFConfig({"model_type": "jaxformer", **extra}), config
    )


def _task(config: ModelConfig) -> Task:
    """What a model with these heads can be asked."""
    heads = {type(head): head for head in config.heads}
    if MaskedLanguageModel in heads and Classification in heads:
        label = heads[Classification].label
        return PreTrainingTask(label, f"{label}_logits")
    if Classification in heads and heads[Classification].label == "next_sentence":
        return NextSentenceTask()
    if Classification in heads:
        head = heads[Classification]
        return SequenceClassificationTask(head.pooling, head.bias, head.dense)
    if LanguageModel in heads:
        return Seq2SeqLMTask() if isinstance(config, EncoderDecoderConfig) else CausalLMTask()
    tasks = {
        MaskedLanguageModel: MaskedLMTask(),
        TokenClassification: TokenClassificationTask(),
        Span: QuestionAnsweringTask(),
    }
    found = [task for kind, task in tasks.items() if kind in heads]
    return found[0] if found else Task()
