"""EuroBERT: Llama's blocks as an encoder, whose logits are computed directly from the states."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import (
    Activation,
    Computed,
    ConfigMap,
    NormEps,
    Number,
    PaddingId,
    Value,
    numbers,
)
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
    num_labels,
)
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import Classification, Dense, EncoderConfig, MaskedLanguageModel
from jaxformer.nn import MLP, DotProductAttention, PreNorm, TokenEmbeddings, VocabularyLogits
from jaxformer.zoo.common.basics import BASE_SIZES, NUMBERS, sized
from jaxformer.zoo.common.llama_like import BIASES, DEFAULTS, FILES, names
from jaxformer.zoo.system import System

_eurobert = partial(
    EncoderConfig,
    residual=PreNorm(),
    self_attention=DotProductAttention(),
    feed_forward=MLP(),
    embeddings=TokenEmbeddings(),
    dropout=0.0,
)


def _sized(
    num_layers: int, model_dim: int, num_heads: int, mlp_dim: int, **changes: Any
) -> EncoderConfig:
    """The published architecture in any size."""
    fields = {
        "vocab_size": 128256,
        "position": RoPE(theta=250_000.0),
        "norm": RMSNorm(eps=1e-5),
        "tie_embeddings": False,
        "logits": VocabularyLogits(),
        "heads": (MaskedLanguageModel(dense=False),),
    }
    return sized(_eurobert, num_layers, model_dim, num_heads, mlp_dim, **(fields | changes))


_SOURCE = "Boizard et al., 2025, table 1, https://arxiv.org/abs/2503.05500"
_COUNTED = "without the output table"

SYSTEMS = (
    System("eurobert-210m", _sized(12, 768, 12, 3072), "210M", _SOURCE, note=_COUNTED),
    System(
        "eurobert-610m", _sized(26, 1152, 18, 4096, num_kv_heads=6), "610M", _SOURCE, note=_COUNTED
    ),
    System(
        "eurobert-2.1b", _sized(32, 2304, 18, 6144, num_kv_heads=6), "2.1B", _SOURCE, note=_COUNTED
    ),
)

_POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}


def _write_pooling(config: EncoderConfig) -> dict[str, Any]:
    theirs = {ours: name for name, ours in _POOLINGS.items()}
    poolings = [head.pooling for head in config.heads if isinstance(head, Classification)]
    return {"classifier_pooling": theirs.get(poolings[0], poolings[0])} if poolings else {}


@dataclass(frozen=True)
class _MaskedLM(MaskedLMTask):
    """The original token at each position, directly from its state."""

    def heads(self, hf_config):
        return (MaskedLanguageModel(dense=False),)


@dataclass(frozen=True)
class _SequenceClassification(SequenceClassificationTask):
    """Sequence classification with a dense layer, and the pooling that config.json names."""

    def heads(self, hf_config):
        pooling = hf_config.choose("classifier_pooling", _POOLINGS, "late")
        labels = num_labels(hf_config)
        return (Classification(num_labels=labels, pooling=pooling, dense=Dense("gelu")),)


_FIELDS = (
    *numbers(NUMBERS),
    Number("num_kv_heads", "num_key_value_heads", None),
    Number("head_dim", "head_dim", None),
    NormEps(theirs="rms_norm_eps", make=RMSNorm),
    PaddingId(),
    Activation(),
    BIASES,
    Value("feed_forward.bias", "mlp_bias", False, also=("logits.bias",)),
    Value("tie_embeddings", "tie_word_embeddings"),
    Number("self_attention.dropout", "attention_dropout", 0.0),
    Rope(),
    Computed(lambda hf_config: {}, _write_pooling),
)
_NAMES = {
    **names("input_layernorm", "post_attention_layernorm"),
    "heads.masked_language_model": "lm_head",
    "heads.label.dense.linear": "dense",
    "heads.label.output": "classifier",
    "heads.tags.output": "classifier",
}

FORMATS = (
    ModelFormat(
        model_type="eurobert",
        config_map=ConfigMap(_eurobert, _FIELDS),
        weight_map=lambda config: WeightMap(_NAMES),
        architectures=(
            Architecture("EuroBertForMaskedLM", _MaskedLM()),
            Architecture("EuroBertForSequenceClassification", _SequenceClassification()),
            Architecture("EuroBertForTokenClassification", TokenClassificationTask()),
            Architecture("EuroBertModel", Task()),
        ),
        # The sequence classifier reads the pooling; the names of tokens are the tokenizer's.
        harmless=("classifier_pooling", "max_position_embeddings", "*_token"),
        defaults=DEFAULTS
        | BASE_SIZES
        | {
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "pad_token_id": 128001,
        },
        **FILES,
    ),
)
