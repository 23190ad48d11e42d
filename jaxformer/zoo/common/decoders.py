"""The classes and heads of decoders in transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks.classes import (
    CausalLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.weight_map import block
from jaxformer.models import EncoderConfig
from jaxformer.nn.config import TextConfig
from jaxformer.zoo.common.encoders import of_family

_TASKS = {
    "ForCausalLM": CausalLMTask(),
    "ForSequenceClassification": SequenceClassificationTask(pooling="last", bias=False),
    "ForTokenClassification": TokenClassificationTask(),
    "ForQuestionAnswering": QuestionAnsweringTask(),
    "Model": Task(),
}
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""The classes with labels, which some systems lack."""
HEADS = {
    "heads.language_model": "lm_head",
    "heads.label.output": "score",
    "heads.tags.output": "classifier",
    "heads.span.output": "qa_outputs",
}
"""Module of a head -> its name in GPT and its relatives."""


def decoder_names(
    embedding: str, layers: str, parts: Mapping[str, str], final_norm: str
) -> dict[str, str]:
    """Returns the names of the modules of a decoder; `parts` are those in a block."""
    return {
        "embedding": embedding,
        **block("transformer", layers, parts),
        "transformer.final_norm": final_norm,
        **HEADS,
    }


def classes(
    name: str, without: tuple[str, ...] = (), prefixes: Mapping[str, str] | None = None
) -> tuple[Architecture, ...]:
    """Returns the classes of a system: `classes("Olmo2", without=("ForTokenClassification",))`."""
    return tuple(
        Architecture(name + kind, task, prefix=(prefixes or {}).get(kind))
        for kind, task in _TASKS.items()
        if kind not in without
    )


@dataclass(frozen=True)
class DecoderMap(ConfigMap):
    """The map of a decoder; if `is_causal` is false, tokens also see those after them."""

    def read(self, hf_config):
        config = super().read(hf_config)
        hf_config.expect("is_causal", True, False)
        if hf_config.take("is_causal", True):
            return config
        # A window has equally many tokens on either side.
        return of_family(EncoderConfig, _with_windows(config, 1))

    def write(self, config):
        if not isinstance(config, EncoderConfig):
            return super().write(config)
        return super().write(_with_windows(config, -1)) | {"is_causal": False}


def _with_windows(config: TextConfig, more: int) -> TextConfig:
    """The model with windows that are `more` tokens wider."""
    return replace(config, windows=tuple(each and each + more for each in config.windows))
