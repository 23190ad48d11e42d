"""MPNet: BERT with T5's biases beside learned positions."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.positions.schemes import T5Bias
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, CountedByIds, ModelFormat
from jaxformer.hub.tasks import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import EncoderConfig
from jaxformer.zoo.bert import BLOCK, LABELS, TINY, body
from jaxformer.zoo.roberta import CLASSIFIER, LM_HEAD, read_roberta, write_roberta

# Transformers has these numbers in its code, whatever config.json says.
_PADDING_ID, _BIAS = 1, T5Bias(32, 128, bidirectional=True)


def read_mpnet(hf_config: HFConfig) -> EncoderConfig:
    """The architecture that a config.json describes."""
    hf_config.expect("pad_token_id", _PADDING_ID)
    hf_config.expect("relative_attention_num_buckets", _BIAS.num_buckets)
    return replace(read_roberta(hf_config), token_types=0, relative_position=_BIAS)


def write_mpnet(config: EncoderConfig) -> dict[str, Any]:
    """And back."""
    values = write_roberta(config) | {"relative_attention_num_buckets": _BIAS.num_buckets}
    del values["type_vocab_size"]
    return values


_PARTS = {part: f"attention.attn.{part[0]}" for part in ("query", "key", "value", "output")}
_BLOCK = BLOCK | attention(0, **_PARTS) | {"norms.0": "attention.LayerNorm"}
_NAMES = {
    **body("mpnet"),
    **block("transformer", "mpnet.encoder.layer.{}", _BLOCK),
    "transformer.inputs.relative_table": "mpnet.encoder.relative_attention_bias.weight",
    **LABELS,
    **LM_HEAD,
}


def weight_map(config: EncoderConfig) -> WeightMap:
    """The names of the tensors; a classifier has a dense layer of its own for a pooler."""
    classifies = any(head.name == "label" for head in config.heads)
    return WeightMap(_NAMES | CLASSIFIER if classifies else _NAMES)


_NO_POOLER = {"pooler": None}

FORMATS = (
    ModelFormat(
        model_type="mpnet",
        read=read_mpnet,
        write=write_mpnet,
        weight_map=weight_map,
        architectures=(
            Architecture("MPNetForMaskedLM", MaskedLMTask("gelu"), _NO_POOLER),
            Architecture("MPNetForSequenceClassification", SequenceClassificationTask()),
            Architecture("MPNetForTokenClassification", TokenClassificationTask(), _NO_POOLER),
            Architecture("MPNetForQuestionAnswering", QuestionAnsweringTask(), _NO_POOLER),
            Architecture("MPNetModel", Task()),
        ),
        tiny=TINY | {"hidden_act": "relu"},
        prefix="mpnet.",
        positions=CountedByIds(),
        buffers=("*.position_ids",),
        copies={
            "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        defaults={"vocab_size": 30527, "pad_token_id": _PADDING_ID},
    ),
)
