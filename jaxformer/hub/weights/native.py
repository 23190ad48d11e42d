"""Models that were made here, described so that they can be asked as transformers' are."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.format import Architecture, Format
from jaxformer.hub.settings import Settings
from jaxformer.hub.source import Source, describe
from jaxformer.hub.tasks import (
    CausalLM,
    MaskedLM,
    NextSentence,
    PreTraining,
    QuestionAnswering,
    Seq2SeqLM,
    SequenceClassification,
    Task,
    TokenLabels,
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


def source_of(config: ModelConfig, formats: Iterable[Format], extra: Mapping[str, Any]) -> Source:
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


def _in_our_terms(config: ModelConfig, problem: str, extra: Mapping[str, Any]) -> Source:
    """A description that can be run and not exported; `problem` says why."""

    def refuse(*_):
        raise ConfigError(problem)

    architecture = Architecture("jaxformer", _task(config))
    format = Format("jaxformer", refuse, refuse, refuse, (architecture,), tiny={})
    return Source(format, architecture, Settings({"model_type": "jaxformer", **extra}), config)


def _task(config: ModelConfig) -> Task:
    """What a model with these heads can be asked."""
    heads = {type(head): head for head in config.heads}
    if MaskedLanguageModel in heads and Classification in heads:
        label = heads[Classification].label
        return PreTraining(label, f"{label}_logits")
    if Classification in heads and heads[Classification].label == "next_sentence":
        return NextSentence()
    if Classification in heads:
        head = heads[Classification]
        return SequenceClassification(head.pooling, head.bias, head.dense)
    if LanguageModel in heads:
        return Seq2SeqLM() if isinstance(config, EncoderDecoderConfig) else CausalLM()
    tasks = {
        MaskedLanguageModel: MaskedLM(),
        TokenClassification: TokenLabels(),
        Span: QuestionAnswering(),
    }
    found = [task for kind, task in tasks.items() if kind in heads]
    return found[0] if found else Task()
