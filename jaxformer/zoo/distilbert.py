"""DistilBERT: every second layer of BERT base, without token types and pooler."""

from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import EncoderConfig, MaskedLanguageModel
from jaxformer.zoo.bert import LABELS, bert
from jaxformer.zoo.system import System

_SOURCE = "Sanh et al., 2019, table 3, https://arxiv.org/abs/1910.01108"
_WITHOUT = {"token_types": 0, "pooler": None, "heads": (MaskedLanguageModel(),)}

SYSTEMS = (
    System("distilbert-base", "distilbert.py:base", bert(6, 768, 12, **_WITHOUT), "66M", _SOURCE),
)


def read_distilbert(hf_config: HFConfig) -> EncoderConfig:
    """The architecture that a config.json describes."""
    # Whether the rows of the table are sinusoids or learned, they are in the file.
    hf_config.expect("sinusoidal_pos_embds", False, True)
    return bert(
        hf_config.number("n_layers", 6),
        hf_config.number("dim", 768),
        hf_config.number("n_heads", 12),
        mlp_dim=hf_config.number("hidden_dim", 3072),
        vocab_size=hf_config.number("vocab_size", 30522),
        position=Learned(max_length=hf_config.number("max_position_embeddings", 512)),
        padding_id=hf_config.number("pad_token_id", 0),
        activation=read_activation(hf_config, "activation", "gelu"),
        tie_embeddings=hf_config.take("tie_word_embeddings", True),
        dropout=hf_config.number("dropout", 0.1),
        attention_dropout=hf_config.number("attention_dropout", 0.1),
        **_WITHOUT,
    )


def write_distilbert(config: EncoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        "n_layers": config.num_layers,
        "dim": config.model_dim,
        "n_heads": config.num_heads,
        "hidden_dim": config.mlp_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.position.max_length,
        "activation": write_activation(config.activation),
        "tie_word_embeddings": config.tie_embeddings,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }


_BLOCK = {
    **attention(
        0,
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
    ),
    "norms.0": "sa_layer_norm",
    "sublayers.1.up": "ffn.lin1",
    "sublayers.1.down": "ffn.lin2",
    "norms.1": "output_layer_norm",
}
_NAMES = {
    "embedding.table": "distilbert.embeddings.word_embeddings.weight",
    "transformer.inputs.position_table": "distilbert.embeddings.position_embeddings.weight",
    "transformer.inputs.embedding_norm": "distilbert.embeddings.LayerNorm",
    **block("transformer", "distilbert.transformer.layer.{}", _BLOCK),
    "pooler": "pre_classifier",
    "heads.masked_language_model.dense": "vocab_transform",
    "heads.masked_language_model.norm": "vocab_layer_norm",
    "heads.masked_language_model.kernel": "vocab_projector.weight",
    "heads.masked_language_model.bias": "vocab_projector.bias",
    **LABELS,
}

FORMATS = (
    ModelFormat(
        model_type="distilbert",
        read=read_distilbert,
        write=write_distilbert,
        weight_map=lambda config: WeightMap(_NAMES),
        architectures=(
            Architecture("DistilBertForMaskedLM", MaskedLMTask()),
            Architecture(
                "DistilBertForSequenceClassification",
                SequenceClassificationTask(),
                {"pooler": "relu"},
            ),
            Architecture("DistilBertForTokenClassification", TokenClassificationTask()),
            Architecture("DistilBertForQuestionAnswering", QuestionAnsweringTask()),
            Architecture("DistilBertModel", Task()),
        ),
        tiny={
            "vocab_size": 131,
            "dim": 48,
            "n_layers": 3,
            "n_heads": 6,
            "hidden_dim": 56,
            "max_position_embeddings": 20,
            "activation": "silu",
        },
        prefix="distilbert.",
        buffers=("*.position_ids",),
        copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        harmless=("qa_dropout", "seq_classif_dropout"),
    ),
)
