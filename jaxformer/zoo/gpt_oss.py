"""gpt-oss: experts in every layer, attention sinks, and a window in every other layer."""

from dataclasses import replace
from functools import partial
from typing import Any

from jaxformer.functional.experts.routing import ClampedSwiGLU, TopKSoftmax
from jaxformer.functional.positions.rope_scaling import YaRN
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Computed, Constant, Number, Value, write_windows
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.layouts import Alternating, Same
from jaxformer.hub.weights.weight_map import Fused, WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention
from jaxformer.nn.experts import Experts
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.experts import expert_fields
from jaxformer.zoo.common.llama_like import (
    DEFAULTS,
    FIELDS,
    NAMES,
    alternating_windows,
    llama,
    llama_format,
)
from jaxformer.zoo.system import System

_THETA = 150_000.0
_EXPERTS = Experts(
    num=128,
    per_token=4,
    router=TopKSoftmax(),
    activation=ClampedSwiGLU(),
    bias=True,
)
_gpt_oss = partial(
    llama,
    self_attention=DotProductAttention(bias=True, output_bias=True, sinks=True),
    feed_forward=_EXPERTS,
)


def _published(layers: int, experts: Experts) -> DecoderConfig:
    """A published size."""
    stretched = YaRN(factor=32.0, original_max_length=4096, truncate=False)
    return _gpt_oss(
        layers,
        2880,
        64,
        2880,
        vocab_size=201_088,
        num_kv_heads=8,
        head_dim=64,
        windows=(128, None),
        position=RoPE(theta=_THETA, scaling=stretched),
        feed_forward=experts,
    )


_SOURCE = "OpenAI, 2025, table 1, https://arxiv.org/abs/2508.10925; the released checkpoints"

SYSTEMS = (
    System(
        "gpt-oss-20b",
        _published(24, replace(_EXPERTS, num=32)),
        "20.91B",
        _SOURCE,
        "gpt_oss.py:20b",
    ),
    System("gpt-oss-120b", _published(36, _EXPERTS), "116.83B", _SOURCE, "gpt_oss.py:120b"),
)


def _read_layers(hf_config: HFConfig) -> dict[str, Any]:
    """Every other layer has a window, from the first one on."""
    window = hf_config.number("sliding_window", None)
    return {"windows": alternating_windows(hf_config, 2, window)}


_INNER = "transformer.stack.group.*.sublayers.1"
_EXPERT = "model.layers.{}.mlp.experts"
_NAMES = {ours: theirs for ours, theirs in NAMES.items() if not ours.startswith(_INNER)} | block(
    "transformer",
    "model.layers.{}",
    {
        "sublayers.0.attention.sinks": "self_attn.sinks",
        "sublayers.1.router": "mlp.router",
        "sublayers.1.down.kernel": "mlp.experts.down_proj",
        "sublayers.1.down.bias": "mlp.experts.down_proj_bias",
    },
)
# The units of the gate and the others alternate.
_GATE_AND_UP = Fused(
    (f"{_INNER}.gate", f"{_INNER}.up"),
    f"{_EXPERT}.gate_up_proj",
    Alternating(),
    separator="",
    leaves={"kernel": "", "bias": "_bias"},
)
_BIASES = ("self_attention.output_bias",)

FORMATS = (
    llama_format(
        "gpt_oss",
        "GptOss",
        (
            *FIELDS,
            Rope(theta=_THETA),
            Constant("hidden_act", "silu"),
            Value("self_attention.bias", "attention_bias", True, also=_BIASES),
            Computed(_read_layers, lambda config: write_windows(config.windows, config.num_layers)),
            *expert_fields("num_local_experts"),
            Number("feed_forward.activation.limit", "swiglu_limit", 7.0),
            Number("feed_forward.activation.alpha", "swiglu_alpha", 1.702),
        ),
        {
            **DEFAULTS,
            "vocab_size": 201_088,
            **their_sizes(36, 2880, 64, 2880),
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "router_aux_loss_coef": 0.001,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": _THETA,
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        make=_gpt_oss,
        weights=WeightMap(_NAMES, fused=(_GATE_AND_UP,), layouts={f"{_INNER}.down.*": Same()}),
        without=("ForQuestionAnswering",),
        synonyms={"num_experts": "num_local_experts"},
        harmless=("experts_per_token", "initial_context_length"),
    ),
)
