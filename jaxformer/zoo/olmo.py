"""OLMo 2: Llama with its norms after the sublayers, and over all queries and keys of a token."""

from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import BranchNorm
from jaxformer.zoo.llama import (
    DEFAULTS,
    FILES,
    TINY,
    classes,
    names,
    read_biases,
    read_sizes,
    write_sizes,
)


def read_olmo2(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    return read_sizes(
        hf_config,
        position=read_rope(hf_config),
        activation=read_activation(hf_config, "hidden_act", "silu"),
        residual=BranchNorm(),
        query_key_norm=RMSNorm(eps=hf_config.number("rms_norm_eps")),
        query_key_norm_over="all_heads",
        **read_biases(hf_config),
    )


def write_olmo2(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_sizes(config),
        **write_rope(config.position),
        "hidden_act": write_activation(config.activation),
        "attention_bias": config.attention_bias,
    }


FORMATS = (
    ModelFormat(
        model_type="olmo2",
        read=read_olmo2,
        write=write_olmo2,
        weight_map=lambda config: WeightMap(
            names("post_attention_layernorm", "post_feedforward_layernorm")
        ),
        architectures=classes("Olmo2", without=("ForTokenClassification", "ForQuestionAnswering")),
        tiny={
            **TINY,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
            "max_position_embeddings": 8,
        },
        defaults={**DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-5, "pad_token_id": 1},
        **FILES,
    ),
)
