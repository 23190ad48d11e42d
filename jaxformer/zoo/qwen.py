"""Qwen 2 and 3: Llama with biases of query, key and value, and with norms of query and key."""

from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.hub.windows import FULL, SLIDING, read_windows, write_windows
from jaxformer.models import DecoderConfig
from jaxformer.zoo.llama import (
    DEFAULTS,
    FILES,
    NAMES,
    OLD_PREFIX,
    TINY,
    classes,
    read_biases,
    read_sizes,
    write_sizes,
)


def _read(hf_config: HFConfig, **fields: Any) -> DecoderConfig:
    """What both have: windows, if any, in the layers from a certain one on."""
    count, first = hf_config.number("num_hidden_layers"), hf_config.number("max_window_layers")
    window = hf_config.number("sliding_window", None)
    if not hf_config.take("use_sliding_window", False):
        window = None
    kinds = [FULL if window is None or layer < first else SLIDING for layer in range(count)]
    return read_sizes(
        hf_config,
        position=read_rope(hf_config),
        activation=read_activation(hf_config, "hidden_act", "silu"),
        windows=read_windows(hf_config, kinds, window),
        **fields,
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    kinds = write_windows(config.windows, config.num_layers)
    return {
        **write_sizes(config),
        **write_rope(config.position),
        **kinds,
        "use_sliding_window": any(config.windows),
        "max_window_layers": [*kinds["layer_types"], SLIDING].index(SLIDING),
        "hidden_act": write_activation(config.activation),
    }


def read_qwen2(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    return _read(hf_config, attention_bias=True)


def write_qwen2(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return _write(config)


def read_qwen3(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    norm = RMSNorm(eps=hf_config.number("rms_norm_eps"))
    return _read(hf_config, query_key_norm=norm, **read_biases(hf_config))


def write_qwen3(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {**_write(config), "attention_bias": config.attention_bias}


_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_TINY = {**TINY, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}

FORMATS = (
    ModelFormat(
        model_type="qwen2",
        read=read_qwen2,
        write=write_qwen2,
        weight_map=lambda config: WeightMap(NAMES),
        architectures=classes("Qwen2", prefixes=OLD_PREFIX),
        tiny={
            **_TINY,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 8,
            },
        },
        defaults=_DEFAULTS,
        **FILES,
    ),
    ModelFormat(
        model_type="qwen3",
        read=read_qwen3,
        write=write_qwen3,
        weight_map=lambda config: WeightMap(NAMES),
        architectures=classes("Qwen3", prefixes=OLD_PREFIX),
        tiny={**_TINY, "attention_bias": True, "tie_word_embeddings": True},
        defaults={**_DEFAULTS, "head_dim": 128},
        **FILES,
    ),
)
