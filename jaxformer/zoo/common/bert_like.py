"""What BERT and its relatives share."""

from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import (
    Activation,
    Computed,
    Expect,
    LearnedPositions,
    NormEps,
    Number,
    PaddingId,
    Value,
    numbers,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks import (
    MaskedLMTask,
    NextSentenceTask,
    PreTrainingTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import Classification, EncoderConfig, MaskedLanguageModel


def bert(num_layers: int, model_dim: int, num_heads: int, **changes: Any) -> EncoderConfig:
    """Returns BERT's architecture in any size, with its pre-training heads.

    Args:
        num_layers: Blocks.
        model_dim: Width of the residual stream.
        num_heads: Query heads.
        **changes: Other fields.
    """
    fields = {
        "vocab_size": 30522,
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * model_dim,
        "position": Learned(max_length=512),
        "token_types": 2,
        "pooler": "tanh",
        "heads": (MaskedLanguageModel(), Classification(label="next_sentence")),
    }
    return EncoderConfig(**(fields | changes))


TOKEN_TYPES = Number("token_types", "type_vocab_size", 2)
FIELDS = (
    Expect("position_embedding_type", "absolute"),
    Expect("is_decoder", False),
    Expect("add_cross_attention", False),
    *numbers(
        {
            "num_layers": "num_hidden_layers",
            "model_dim": "hidden_size",
            "num_heads": "num_attention_heads",
            "mlp_dim": "intermediate_size",
            "vocab_size": "vocab_size",
        },
        {
            "num_hidden_layers": 12,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 30522,
        },
    ),
    LearnedPositions(default=512),
    TOKEN_TYPES,
    PaddingId(default=0),
    Activation(default="gelu"),
    NormEps(default=1e-12, also=("embedding_norm",)),
    Value("tie_embeddings", "tie_word_embeddings", True),
    Number("dropout", "hidden_dropout_prob", 0.1),
    Number("attention_dropout", "attention_probs_dropout_prob", 0.1),
)
"""The fields of config.json that all relatives have."""
BLOCK = {
    **attention(
        0,
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        output="attention.output.dense",
    ),
    "norms.0": "attention.output.LayerNorm",
    "sublayers.1.up": "intermediate.dense",
    "sublayers.1.down": "output.dense",
    "norms.1": "output.LayerNorm",
}


def body(name: str) -> dict[str, str]:
    """Returns the names of the modules below the heads; `name` is their prefix: "bert"."""
    embeddings = f"{name}.embeddings"
    return {
        "embedding.table": f"{embeddings}.word_embeddings.weight",
        "transformer.inputs.position_table": f"{embeddings}.position_embeddings.weight",
        "transformer.inputs.kinds.token_types": f"{embeddings}.token_type_embeddings.weight",
        "transformer.inputs.kinds.task_types": f"{embeddings}.task_type_embeddings.weight",
        "transformer.inputs.embedding_norm": f"{embeddings}.LayerNorm",
        **block("transformer", f"{name}.encoder.layer.{{}}", BLOCK),
        "pooler": f"{name}.pooler.dense",
    }


LABELS = {
    "heads.label.output": "classifier",
    "heads.tags.output": "classifier",
    "heads.span.output": "qa_outputs",
}
HEADS = {
    "heads.masked_language_model.dense": "cls.predictions.transform.dense",
    "heads.masked_language_model.norm": "cls.predictions.transform.LayerNorm",
    "heads.masked_language_model.kernel": "cls.predictions.decoder.weight",
    "heads.masked_language_model.bias": "cls.predictions.bias",
    "heads.next_sentence.output": "cls.seq_relationship",
}
"""Module of a pre-training head -> its name in BERT and ERNIE."""
NO_POOLER = {"pooler": None}


def architectures(name: str) -> tuple[Architecture, ...]:
    """Returns the classes of BERT and ERNIE, whose names begin with `name`: "Bert"."""
    pre_training = PreTrainingTask("next_sentence", "seq_relationship_logits")
    return (
        Architecture(f"{name}ForPreTraining", pre_training),
        Architecture(f"{name}ForMaskedLM", MaskedLMTask(), NO_POOLER),
        Architecture(f"{name}ForNextSentencePrediction", NextSentenceTask()),
        Architecture(f"{name}ForSequenceClassification", SequenceClassificationTask()),
        Architecture(f"{name}ForTokenClassification", TokenClassificationTask(), NO_POOLER),
        Architecture(f"{name}ForQuestionAnswering", QuestionAnsweringTask(), NO_POOLER),
        Architecture(f"{name}Model", Task()),
    )


# RoBERTa and MPNet ------------------------------------------------------------------------------


def _read_positions(hf_config: HFConfig) -> dict[str, Any]:
    """Positions begin after the padding's id."""
    padding_id = hf_config.number("pad_token_id")
    rows = hf_config.number("max_position_embeddings", 512)
    return {"position": Learned(max_length=rows - padding_id - 1, offset=padding_id + 1)}


def _write_positions(config: EncoderConfig) -> dict[str, Any]:
    position = config.position
    return {
        "max_position_embeddings": position.offset + position.max_length,
        "pad_token_id": position.offset - 1,
    }


ROBERTA_FIELDS = (*FIELDS, Computed(_read_positions, _write_positions))
LM_HEAD = {
    "heads.masked_language_model.dense": "lm_head.dense",
    "heads.masked_language_model.norm": "lm_head.layer_norm",
    "heads.masked_language_model.kernel": "lm_head.decoder.weight",
    "heads.masked_language_model.bias": "lm_head.bias",
}


def with_classifier(names: dict[str, str], config: EncoderConfig) -> WeightMap:
    """Returns the names of the tensors; a sequence classifier has its own pooler.

    Args:
        names: The names in a model without a classifier.
        config: The model.
    """
    if any(head.name == "label" for head in config.heads):
        names |= {"pooler": "classifier.dense", "heads.label.output": "classifier.out_proj"}
    return WeightMap(names)


def roberta_architectures(name: str) -> tuple[Architecture, ...]:
    """Returns the classes of RoBERTa and MPNet, whose names begin with `name`: "Roberta"."""
    return (
        Architecture(f"{name}ForMaskedLM", MaskedLMTask("gelu"), NO_POOLER),
        Architecture(f"{name}ForSequenceClassification", SequenceClassificationTask()),
        Architecture(f"{name}ForTokenClassification", TokenClassificationTask(), NO_POOLER),
        Architecture(f"{name}ForQuestionAnswering", QuestionAnsweringTask(), NO_POOLER),
        Architecture(f"{name}Model", Task()),
    )
