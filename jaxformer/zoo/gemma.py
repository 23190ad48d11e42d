"""Gemma: scaled embeddings and norms of 1 + scale; Gemma 2 and 3 alternate windows."""

import warnings
from dataclasses import replace
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.rope import read_layer_ropes, read_rope, write_layer_ropes, write_rope
from jaxformer.hub.tasks import CausalLMTask, SequenceClassificationTask, Task
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.hub.windows import FULL, SLIDING, read_windows, write_windows
from jaxformer.models import DecoderConfig
from jaxformer.nn import SandwichNorm
from jaxformer.zoo.llama import (
    DEFAULTS,
    FILES,
    NAMES,
    TINY,
    classes,
    llama,
    names,
    read_biases,
    read_sizes,
    write_sizes,
)
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "gemma-2b",
        "gemma.py:2b",
        llama(
            18,
            2048,
            8,
            16384,
            vocab_size=256000,
            num_kv_heads=1,
            head_dim=256,
            norm=RMSNorm(eps=1e-6, unit_offset=True),
            activation="gelu_tanh",
            embedding_scale=2048**0.5,
            tie_embeddings=True,
        ),
        "2,506,434,560",
        "Gemma Team, 2024, tables 1 and 2, https://arxiv.org/abs/2403.08295",
        "the vocabulary padded to 256,128 tokens",
    ),
)


def _read(hf_config: HFConfig, **fields: Any) -> DecoderConfig:
    """What all Gemmas have."""
    hf_config.expect("use_bidirectional_attention", None, False)
    return read_sizes(
        hf_config,
        norm=RMSNorm(eps=hf_config.number("rms_norm_eps"), unit_offset=True),
        embedding_scale=hf_config.number("hidden_size") ** 0.5,
        **read_biases(hf_config),
        **fields,
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    return {**write_sizes(config), "attention_bias": config.attention_bias}


def read_gemma(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    # The first files say "gelu" and mean the tanh form, which some name in a second field.
    hf_config.expect("hidden_activation", None, "gelu_pytorch_tanh")
    activation = read_activation(hf_config, "hidden_act", "gelu_pytorch_tanh")
    return _read(
        hf_config,
        position=read_rope(hf_config),
        activation="gelu_tanh" if activation == "gelu" else activation,
    )


def write_gemma(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **_write(config),
        **write_rope(config.position),
        "hidden_act": write_activation(config.activation),
    }


def _read_second(hf_config: HFConfig, every: int, **fields: Any) -> DecoderConfig:
    """What Gemma 2 and 3 have: windows in all layers but each `every`-th, and a norm more."""
    # Files have it beside the field that counts.
    hf_config.expect("hidden_act", None, hf_config.take("hidden_activation"))
    count = hf_config.number("num_hidden_layers")
    kinds = [SLIDING if layer % every else FULL for layer in range(1, count + 1)]
    return _read(
        hf_config,
        residual=SandwichNorm(),
        activation=read_activation(hf_config, "hidden_activation", "gelu_pytorch_tanh"),
        attention_scale=hf_config.number("query_pre_attn_scalar") ** -0.5,
        logit_softcap=hf_config.number("final_logit_softcapping", None),
        windows=read_windows(hf_config, kinds, hf_config.number("sliding_window", None)),
        **fields,
    )


def _write_second(config: DecoderConfig) -> dict[str, Any]:
    scale = config.attention_scale or config.head_width**-0.5
    return {
        **_write(config),
        **write_windows(config.windows, config.num_layers),
        "hidden_activation": write_activation(config.activation),
        "query_pre_attn_scalar": round(scale**-2),
        "final_logit_softcapping": config.logit_softcap,
        "attn_logit_softcapping": config.attention_softcap,
    }


def read_gemma2(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    softcap = hf_config.number("attn_logit_softcapping", None)
    return _read_second(hf_config, 2, position=read_rope(hf_config), attention_softcap=softcap)


def write_gemma2(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {**_write_second(config), **write_rope(config.position)}


_THETAS = {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}


def read_gemma3(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    if softcap := hf_config.number("attn_logit_softcapping", None):
        warnings.warn(
            f"{hf_config.path}: attn_logit_softcapping = {softcap} is ignored in Gemma 3, as it is "
            "by transformers",
            stacklevel=2,
        )
    bases = {FULL: (_THETAS[FULL], 1_000_000.0), SLIDING: (_THETAS[SLIDING], 10_000.0)}
    ropes = read_layer_ropes(hf_config, bases, scaled=(FULL,))
    config = _read_second(
        hf_config,
        hf_config.number("sliding_window_pattern", 6),
        position=ropes[FULL],
        query_key_norm=RMSNorm(eps=hf_config.number("rms_norm_eps"), unit_offset=True),
    )
    return config if not any(config.windows) else replace(config, window_position=ropes[SLIDING])


def write_gemma3(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    ropes = {FULL: config.position, SLIDING: config.window_position or config.position}
    return {**_write_second(config), **write_layer_ropes(ropes, _THETAS, scaled=FULL)}


_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
_SECOND = {
    **_DEFAULTS,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_TINY = {**TINY, "attention_bias": True}
_ALTERNATING = {**_TINY, "num_hidden_layers": 4, "query_pre_attn_scalar": 20, "sliding_window": 4}
_HARMLESS = ("cache_implementation", "sliding_window_size")
_SECOND_NAMES = names(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

FORMATS = (
    ModelFormat(
        model_type="gemma",
        read=read_gemma,
        write=write_gemma,
        weight_map=lambda config: WeightMap(NAMES),
        architectures=classes("Gemma", without=("ForQuestionAnswering",)),
        tiny={**_TINY, "rope_parameters": {"rope_type": "linear", "factor": 2.5}},
        defaults={
            **_DEFAULTS,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        **FILES,
    ),
    ModelFormat(
        model_type="gemma2",
        read=read_gemma2,
        write=write_gemma2,
        weight_map=lambda config: WeightMap(_SECOND_NAMES),
        architectures=classes("Gemma2", without=("ForQuestionAnswering",)),
        tiny={**_ALTERNATING, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        defaults={
            **_SECOND,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        harmless=_HARMLESS,
        **FILES,
    ),
    ModelFormat(
        model_type="gemma3_text",
        read=read_gemma3,
        write=write_gemma3,
        weight_map=lambda config: WeightMap(_SECOND_NAMES),
        architectures=(
            Architecture("Gemma3ForCausalLM", CausalLMTask()),
            Architecture(
                "Gemma3TextForSequenceClassification",
                SequenceClassificationTask(pooling="last", bias=False),
            ),
            Architecture("Gemma3TextModel", Task()),
        ),
        tiny={
            **_ALTERNATING,
            "layer_types": [SLIDING, FULL] * 2,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 30.0},
                FULL: {"rope_type": "linear", "rope_theta": 200.0, "factor": 3.0},
            },
        },
        defaults={**_SECOND, "vocab_size": 262_208, "max_position_embeddings": 131_072},
        harmless=_HARMLESS,
        **FILES,
    ),
)
