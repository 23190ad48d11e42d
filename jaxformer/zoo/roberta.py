"""RoBERTa and XLM-RoBERTa: BERT without next-sentence prediction, a larger vocabulary."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, CountedByIds, ModelFormat
from jaxformer.hub.tasks import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import EncoderConfig, MaskedLanguageModel
from jaxformer.zoo.bert import LABELS, TINY, bert, body, read_bert, write_bert
from jaxformer.zoo.system import System

_SOURCE = "Liu et al., 2019, section 3 and table 9, https://arxiv.org/abs/1907.11692"
_CHANGES = {
    "vocab_size": 50265,
    "position": Learned(max_length=512, offset=2),
    "token_types": 1,
    "pooler": None,
    "norm": LayerNorm(eps=1e-5),
    "embedding_norm": LayerNorm(eps=1e-5),
    "heads": (MaskedLanguageModel(),),
}

SYSTEMS = (
    System("roberta-base", "roberta.py:base", bert(12, 768, 12, **_CHANGES), "125M", _SOURCE),
    System("roberta-large", "roberta.py:large", bert(24, 1024, 16, **_CHANGES), "355M", _SOURCE),
)


def read_roberta(hf_config: HFConfig) -> EncoderConfig:
    """The architecture that a config.json describes: positions begin after the padding's id."""
    padding_id = hf_config.number("pad_token_id")
    rows = hf_config.number("max_position_embeddings", 512)
    position = Learned(max_length=rows - padding_id - 1, offset=padding_id + 1)
    return replace(read_bert(hf_config), position=position)


def write_roberta(config: EncoderConfig) -> dict[str, Any]:
    """And back."""
    position = config.position
    return write_bert(config) | {
        "max_position_embeddings": position.offset + position.max_length,
        "pad_token_id": position.offset - 1,
    }


LM_HEAD = {
    "heads.masked_language_model.dense": "lm_head.dense",
    "heads.masked_language_model.norm": "lm_head.layer_norm",
    "heads.masked_language_model.kernel": "lm_head.decoder.weight",
    "heads.masked_language_model.bias": "lm_head.bias",
}


CLASSIFIER = {"pooler": "classifier.dense", "heads.label.output": "classifier.out_proj"}


def weight_map(config: EncoderConfig) -> WeightMap:
    """The names of the tensors; a classifier has a dense layer of its own for a pooler."""
    names = body("roberta") | LABELS | LM_HEAD
    classifies = any(head.name == "label" for head in config.heads)
    return WeightMap(names | CLASSIFIER if classifies else names)


def roberta_format(model_type: str, name: str, vocab_size: int) -> ModelFormat:
    """The files of RoBERTa, perhaps under another name.

    Args:
        model_type: As config.json has it.
        name: What its classes begin with: "Roberta".
        vocab_size: Where a config.json does not say.
    """
    no_pooler = {"pooler": None}
    return ModelFormat(
        model_type=model_type,
        read=read_roberta,
        write=write_roberta,
        weight_map=weight_map,
        architectures=(
            Architecture(f"{name}ForMaskedLM", MaskedLMTask("gelu"), no_pooler),
            Architecture(f"{name}ForSequenceClassification", SequenceClassificationTask()),
            Architecture(f"{name}ForTokenClassification", TokenClassificationTask(), no_pooler),
            Architecture(f"{name}ForQuestionAnswering", QuestionAnsweringTask(), no_pooler),
            Architecture(f"{name}Model", Task()),
        ),
        tiny=TINY | {"hidden_act": "relu", "type_vocab_size": 2, "pad_token_id": 3},
        prefix="roberta.",
        positions=CountedByIds(),
        buffers=("*.position_ids",),
        copies={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        defaults={"vocab_size": vocab_size, "pad_token_id": 1},
    )


FORMATS = (
    roberta_format("roberta", "Roberta", vocab_size=50265),
    roberta_format("xlm-roberta", "XLMRoberta", vocab_size=30522),
)
