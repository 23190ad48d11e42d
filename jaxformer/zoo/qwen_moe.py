"""Qwen3-MoE: Qwen 3 with 128 small experts in every layer, of which a token uses eight."""

from functools import partial
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Computed, Expect, NormEps, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention
from jaxformer.nn.experts import BalanceLoss, Experts
from jaxformer.zoo.common.decoders import DecoderMap, classes
from jaxformer.zoo.common.experts import RENORMALIZE, expert_fields, expert_names
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    FIELDS,
    FILES,
    NAMES,
    OLD_PREFIX,
    llama,
)
from jaxformer.zoo.system import System

_NORM = RMSNorm(eps=1e-6)


_qwen3_moe = partial(
    llama,
    self_attention=DotProductAttention(query_key_norm=_NORM),
    feed_forward=Experts(num=128, per_token=8),
)


def _published(layers: int, width: int, heads: int, dense: int, inner: int) -> DecoderConfig:
    """A published size: `inner` is the width of an expert; no layer has the width `dense`."""
    return _qwen3_moe(
        layers,
        width,
        heads,
        dense,
        vocab_size=151936,
        num_kv_heads=4,
        head_dim=128,
        norm=_NORM,
        position=RoPE(theta=1_000_000.0),
        feed_forward=Experts(
            num=128, per_token=8, dim=inner, losses=(BalanceLoss(weight=0.001, over="all_layers"),)
        ),
    )


_SOURCE = "Qwen Team, 2025, table 2, https://arxiv.org/abs/2505.09388; the released checkpoints"

SYSTEMS = (
    System(
        "qwen3-30b-a3b",
        "qwen3_moe.py:30b-a3b",
        _published(48, 2048, 32, 6144, 768),
        "30.5B",
        _SOURCE,
    ),
    System(
        "qwen3-235b-a22b",
        "qwen3_moe.py:235b-a22b",
        _published(94, 4096, 64, 12288, 1536),
        "235B",
        _SOURCE,
    ),
)


def _read_window(hf_config: HFConfig) -> dict[str, Any]:
    """All layers have the window, or none."""
    used = hf_config.take("use_sliding_window", False)
    window = hf_config.number("sliding_window", None)
    return {"windows": (window if used else None,)}


def _write_window(config: DecoderConfig) -> dict[str, Any]:
    window = config.windows[0]
    return {"use_sliding_window": window is not None, "sliding_window": window}


FORMATS = (
    ModelFormat(
        model_type="qwen3_moe",
        config_map=DecoderMap(
            _qwen3_moe,
            (
                *FIELDS,
                NormEps(
                    theirs="rms_norm_eps", make=RMSNorm, also=("self_attention.query_key_norm",)
                ),
                Rope(),
                Activation(default="silu"),
                BIASES,
                Computed(_read_window, _write_window),
                *expert_fields("num_experts"),
                Number("feed_forward.dim", "moe_intermediate_size"),
                RENORMALIZE,
                Expect("decoder_sparse_step", 1),
                Expect("mlp_only_layers", [], None),
            ),
        ),
        weight_map=lambda config: WeightMap(
            NAMES | expert_names("mlp", gate="gate_proj", up="up_proj", down="down_proj")
        ),
        architectures=classes("Qwen3Moe", prefixes=OLD_PREFIX),
        defaults={
            **DEFAULTS,
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "router_aux_loss_coef": 0.001,
        },
        synonyms={"num_local_experts": "num_experts"},
        **FILES,
    ),
)
