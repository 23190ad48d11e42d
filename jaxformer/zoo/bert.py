"""BERT."""

from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
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
from jaxformer.zoo.system import System

_SOURCE = "Devlin et al., 2018, section 3, https://arxiv.org/abs/1810.04805"


def bert(num_layers: int, model_dim: int, num_heads: int, **changes) -> EncoderConfig:
    """The architecture in any size, with the heads of its pre-training."""
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


SYSTEMS = (
    System("bert-base", "bert.py:base", bert(12, 768, 12), "110M", _SOURCE),
    System("bert-large", "bert.py:large", bert(24, 1024, 16), "340M", _SOURCE),
)


def read_bert(hf_config: HFConfig) -> EncoderConfig:
    """The architecture that a config.json describes."""
    hf_config.expect("position_embedding_type", "absolute")
    hf_config.expect("is_decoder", False)
    hf_config.expect("add_cross_attention", False)
    return bert(
        hf_config.number("num_hidden_layers", 12),
        hf_config.number("hidden_size", 768),
        hf_config.number("num_attention_heads", 12),
        mlp_dim=hf_config.number("intermediate_size", 3072),
        vocab_size=hf_config.number("vocab_size", 30522),
        position=Learned(max_length=hf_config.number("max_position_embeddings", 512)),
        token_types=hf_config.number("type_vocab_size", 2),
        padding_id=hf_config.number("pad_token_id", 0),
        activation=read_activation(hf_config, "hidden_act", "gelu"),
        norm=LayerNorm(eps=hf_config.number("layer_norm_eps", 1e-12)),
        embedding_norm=LayerNorm(eps=hf_config.number("layer_norm_eps", 1e-12)),
        tie_embeddings=hf_config.take("tie_word_embeddings", True),
        dropout=hf_config.number("hidden_dropout_prob", 0.1),
        attention_dropout=hf_config.number("attention_probs_dropout_prob", 0.1),
    )


def write_bert(config: EncoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.model_dim,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.position.max_length,
        "type_vocab_size": config.token_types,
        "hidden_act": write_activation(config.activation),
        "layer_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


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
    """Names of the modules under the heads, for BERT and its relatives.

    Args:
        name: What comes before them there: "bert".
    """
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


def architectures(name: str) -> tuple[Architecture, ...]:
    """The classes of BERT and its relatives, whose names begin with `name`: "Bert"."""
    no_pooler = {"pooler": None}
    pre_training = PreTrainingTask("next_sentence", "seq_relationship_logits")
    return (
        Architecture(f"{name}ForPreTraining", pre_training),
        Architecture(f"{name}ForMaskedLM", MaskedLMTask(), no_pooler),
        Architecture(f"{name}ForNextSentencePrediction", NextSentenceTask()),
        Architecture(f"{name}ForSequenceClassification", SequenceClassificationTask()),
        Architecture(f"{name}ForTokenClassification", TokenClassificationTask(), no_pooler),
        Architecture(f"{name}ForQuestionAnswering", QuestionAnsweringTask(), no_pooler),
        Architecture(f"{name}Model", Task()),
    )


TINY = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 56,
    "max_position_embeddings": 20,
}

FORMATS = (
    ModelFormat(
        model_type="bert",
        read=read_bert,
        write=write_bert,
        weight_map=lambda config: WeightMap(body("bert") | LABELS | HEADS),
        architectures=architectures("Bert"),
        tiny=TINY,
        prefix="bert.",
        buffers=("*.position_ids",),
        aliases={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
        copies={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
)
