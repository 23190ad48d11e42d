"""Phi-3 and Phi-4-mini: Llama with fused projections, LongRoPE and, later, partial rotation."""

from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.positions.rope_scaling import LongRoPE, NoScaling, Scaling
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import Fused, WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.zoo.llama import DEFAULTS, FILES, NAMES, TINY, classes, read_sizes, write_sizes


def read_phi3(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    for name in ("full_attn_mod", "interpolate_factor"):
        hf_config.expect(name, 1)
    rope = read_rope(hf_config, fraction=1.0, synonyms={"su": "longrope", "yarn": "longrope"})
    if not isinstance(rope.scaling, NoScaling | LongRoPE):
        raise ConfigError(
            f"{hf_config.path}: the scaling {rope.scaling} is not supported for model_type 'phi3': "
            "only longrope"
        )
    return read_sizes(
        hf_config,
        position=rope,
        activation=read_activation(hf_config, "hidden_act", "silu"),
        windows=(hf_config.number("sliding_window", None),),
        dropout=hf_config.number("resid_pdrop", 0.0),
        embedding_dropout=hf_config.number("embd_pdrop", 0.0),
    )


def write_phi3(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    own = config.embedding_dropout
    return {
        **write_sizes(config),
        **write_rope(config.position, fraction_field="partial_rotary_factor"),
        **_write_lengths(config.position.scaling),
        "hidden_act": write_activation(config.activation),
        "sliding_window": config.windows[0],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout if own is None else own,
    }


def _write_lengths(scaling: Scaling) -> dict[str, Any]:
    """The lengths before and after the stretching, which stand outside of it."""
    if not isinstance(scaling, LongRoPE):
        return {}
    original = scaling.original_max_length
    longest = round(scaling.factor * original)
    lengths = {
        "original_max_position_embeddings": original,
        "max_position_embeddings": longest,
    }
    if longest / original != scaling.factor or scaling.attention_factor is not None:
        return lengths
    # Where the lengths say the rest, version 4 of transformers takes these three fields alone.
    old = {
        "type": "longrope",
        "short_factor": list(scaling.short_factors),
        "long_factor": list(scaling.long_factors),
    }
    return {**lengths, "rope_scaling": old}


_PARTS = {
    "sublayers.0.attention": ("self_attn.qkv_proj", ("query", "key", "value")),
    "sublayers.1": ("mlp.gate_up_proj", ("gate", "up")),
}
_BLOCK = "transformer.stack.group.*"
WEIGHT_MAP = WeightMap(
    NAMES,
    fused=[
        Fused(
            tuple(f"{_BLOCK}.{sublayer}.{part}" for part in parts),
            f"model.layers.{{}}.{tensor}",
            Concatenated(),
        )
        for sublayer, (tensor, parts) in _PARTS.items()
    ],
)

FORMATS = (
    ModelFormat(
        model_type="phi3",
        read=read_phi3,
        write=write_phi3,
        weight_map=lambda config: WEIGHT_MAP,
        architectures=classes("Phi3", without=("ForQuestionAnswering",)),
        tiny={
            **{name: value for name, value in TINY.items() if name != "head_dim"},
            "sliding_window": 4,
            "original_max_position_embeddings": 8,
            "partial_rotary_factor": 0.75,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "short_factor": [1.0, 1.1, 1.3],
                "long_factor": [1.2, 2.0, 3.5],
            },
        },
        defaults={
            **DEFAULTS,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "pad_token_id": 32000,
        },
        **FILES,
    ),
)
