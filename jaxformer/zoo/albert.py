"""ALBERT: one layer that is shared by all depths, and a narrow embedding table."""

from dataclasses import replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.fields import Computed, ConfigMap
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import MaskedLMTask, PreTrainingTask
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import Classification, EncoderConfig, MaskedLanguageModel
from jaxformer.nn import MLP
from jaxformer.nn.config import MOST_LAYERS
from jaxformer.zoo.common.basics import projections, their_sizes
from jaxformer.zoo.common.bert_like import (
    ENCODER,
    FIELDS,
    LABELS,
    NO_POOLER,
    bert,
    body,
    head_copies,
    named,
    with_labels,
)
from jaxformer.zoo.common.cross_attention import NO_CROSS_ATTENTION
from jaxformer.zoo.system import System

_SOURCE = "Lan et al., 2019, tables 1 and 2, https://arxiv.org/abs/1909.11942"


def albert(num_layers: int, model_dim: int, num_heads: int) -> EncoderConfig:
    """Returns the architecture in any size, with its pre-training heads."""
    return bert(
        num_layers,
        model_dim,
        num_heads,
        vocab_size=30000,
        embeddings=replace(EncoderConfig.embeddings, dim=128, token_types=2),
        layer_repeats=num_layers,
        feed_forward=MLP(activation="gelu_tanh", gated=False, bias=True),
        heads=(MaskedLanguageModel(), Classification(label="sentence_order")),
    )


SYSTEMS = (
    System("albert-base", albert(12, 768, 12), "12M", _SOURCE, "albert.py:base"),
    System("albert-large", albert(24, 1024, 16), "18M", _SOURCE, "albert.py:large"),
    System("albert-xlarge", albert(24, 2048, 16), "60M", _SOURCE, "albert.py:xlarge"),
    System(
        "albert-xxlarge",
        albert(12, 4096, 64),
        "223M",
        "the released checkpoint of version 2; the paper's table 1 has 235M for the same sizes and "
        f"does not say what it counts; {_SOURCE}",
        "albert.py:xxlarge",
    ),
)


def _read_groups(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the groups of layers that share parameters; each has one or several inner layers."""
    layers = hf_config.number("num_hidden_layers", 12)
    groups = hf_config.number("num_hidden_groups", 1)
    inner = hf_config.number("inner_group_num", 1)
    if groups < 1 or layers % groups:
        raise ConfigError(
            f"{hf_config.path}: num_hidden_groups = {groups} does not divide num_hidden_layers = "
            f"{layers}: groups of different depth are not supported"
        )
    if not 1 <= inner <= MOST_LAYERS:
        wanted = f"from 1 to {MOST_LAYERS}"
        raise ConfigError(f"{hf_config.path}: inner_group_num = {inner}: must be {wanted}")
    return {
        "num_layers": layers * inner,
        "layer_repeats": layers // groups,
        "windows": (None,) * inner,
    }


def _write_groups(config: EncoderConfig) -> dict[str, Any]:
    inner = len(config.windows)
    return {
        "inner_group_num": inner,
        "num_hidden_layers": config.num_layers // inner,
        "num_hidden_groups": config.num_layers // (inner * config.layer_repeats),
    }


def _read_embedding(hf_config: HFConfig) -> dict[str, Any]:
    width = hf_config.number("embedding_size", 128)
    if width == hf_config.number("hidden_size"):
        raise ConfigError(
            f"{hf_config.path}: embedding_size = {width} is hidden_size as well: a projection "
            "between equal widths is not supported, give embeddings another width"
        )
    return {"embeddings.dim": width}


_FIELDS = (
    ENCODER,
    NO_CROSS_ATTENTION,
    *FIELDS,
    Computed(_read_groups, _write_groups),
    Computed(_read_embedding, lambda config: {"embedding_size": config.embedding_width}),
)
_BLOCK = {
    **projections("attention", "dense", parts=("query", "key", "value")),
    "norms.0": "attention.LayerNorm",
    "sublayers.1.up": "ffn",
    "sublayers.1.down": "ffn_output",
    "norms.1": "full_layer_layer_norm",
}
_NAMES = {
    **body("albert"),
    "transformer.inputs.projection": "albert.encoder.embedding_hidden_mapping_in",
    "pooler": "albert.pooler",
    "heads.masked_language_model.dense": "predictions.dense",
    "heads.masked_language_model.norm": "predictions.LayerNorm",
    "heads.masked_language_model.kernel": "predictions.decoder.weight",
    "heads.masked_language_model.bias": "predictions.bias",
    "heads.sentence_order.output": "sop_classifier.classifier",
    **LABELS,
}


def _weight_map(config: EncoderConfig) -> WeightMap:
    """The names of the tensors; a layer has the number of its group and its number in the group."""
    names = dict(_NAMES)
    for inner in range(len(config.windows)):
        layer = f"albert.encoder.albert_layer_groups.{{}}.albert_layers.{inner}"
        for own, theirs in _BLOCK.items():
            names[f"transformer.stack.group.{inner}.{own}"] = f"{layer}.{theirs}"
    return named(names, "predictions.bias", config)


FORMATS = (
    ModelFormat(
        model_type="albert",
        config_map=ConfigMap(bert, _FIELDS),
        weight_map=_weight_map,
        architectures=(
            Architecture("AlbertForPreTraining", PreTrainingTask("sentence_order", "sop_logits")),
            Architecture("AlbertForMaskedLM", MaskedLMTask(), NO_POOLER),
            *with_labels("Albert"),
        ),
        prefix="albert.",
        buffers=("*.position_ids",),
        copies=head_copies("albert", "predictions"),
        # Options of the first program, which its files always have with the same value.
        harmless=("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
        defaults={
            "vocab_size": 30000,
            **their_sizes(12, 4096, 64, 16384),
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    ),
)
