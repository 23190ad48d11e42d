"""Qwen2-MoE, with a shared expert, and Qwen3-MoE: Qwen with many small experts in every layer."""

from dataclasses import replace
from functools import partial
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.experts.losses import BalanceLoss
from jaxformer.functional.experts.routing import SoftmaxTopK
from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import FULL, SLIDING, Computed, Number, Value, read_windows, write_windows
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention
from jaxformer.nn.experts import Experts, SharedExpert
from jaxformer.zoo.common.experts import MLP, RENORMALIZE, dense_names, expert_fields, expert_names
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    NAMES,
    OLD_PREFIX,
    QUERY_KEY_NORM,
    USUAL_FIELDS,
    llama,
    llama_format,
    used_window,
)
from jaxformer.zoo.system import System

_NORM = RMSNorm(eps=1e-6)
_LOSSES = (BalanceLoss(weight=0.001, over="all_layers"),)
_QWEN2_EXPERTS = Experts(
    num=60,
    per_token=4,
    router=SoftmaxTopK(renormalize=False),
    shared=SharedExpert(dim=5632, gated=True),
)
_qwen2_moe = partial(
    llama, self_attention=DotProductAttention(bias=True), feed_forward=_QWEN2_EXPERTS
)
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
        feed_forward=Experts(num=128, per_token=8, dim=inner, losses=_LOSSES),
    )


_SOURCE = "Qwen Team, 2025, table 2, https://arxiv.org/abs/2505.09388; the released checkpoints"

SYSTEMS = (
    System(
        "qwen1.5-moe-a2.7b",
        _qwen2_moe(
            24,
            2048,
            16,
            5632,
            vocab_size=151936,
            norm=_NORM,
            position=RoPE(theta=1_000_000.0),
            feed_forward=replace(_QWEN2_EXPERTS, dim=1408, losses=_LOSSES),
        ),
        "14.3B",
        "Qwen Team, 2024, the announcement and the released checkpoint",
    ),
    System(
        "qwen3-30b-a3b",
        _published(48, 2048, 32, 6144, 768),
        "30.5B",
        _SOURCE,
        "qwen3_moe.py:30b-a3b",
    ),
    System(
        "qwen3-235b-a22b",
        _published(94, 4096, 64, 12288, 1536),
        "235B",
        _SOURCE,
        "qwen3_moe.py:235b-a22b",
    ),
)


def _read_window(hf_config: HFConfig) -> dict[str, Any]:
    """Either all layers have the window, or none."""
    return _with_dense_layers(hf_config, (used_window(hf_config),))


def _write_window(config: DecoderConfig) -> dict[str, Any]:
    window = config.windows[0]
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        **_dense_layers(config),
    }


def _with_dense_layers(hf_config: HFConfig, windows: tuple[int | None, ...]) -> dict[str, Any]:
    """The windows and the number of layers without experts, which must be the first ones."""
    step = hf_config.number("decoder_sparse_step")
    named = hf_config.take("mlp_only_layers", None) or []
    if step < 1 or step != int(step):
        raise ConfigError(f"{hf_config.path}: decoder_sparse_step = {step}: must be 1 or more")
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        raise ConfigError(f"{hf_config.path}: mlp_only_layers = {named!r}: must list layers")
    count = hf_config.number("num_hidden_layers")
    dense = [layer for layer in range(count) if layer in named or (layer + 1) % step]
    if dense != list(range(len(dense))):
        raise ConfigError(
            f"{hf_config.path}: mlp_only_layers = {named} and decoder_sparse_step = {step} make "
            f"the layers {dense} dense: only the first layers can be"
        )
    if dense:  # layers that differ are named one by one
        windows = tuple(windows[layer % len(windows)] for layer in range(count))
    return {"windows": windows, "feed_forward.dense_layers": len(dense)}


def _dense_layers(config: DecoderConfig) -> dict[str, Any]:
    dense = getattr(config.feed_forward, "dense_layers", 0)
    return {"decoder_sparse_step": 1, "mlp_only_layers": list(range(dense))}


def _read_windows(hf_config: HFConfig) -> dict[str, Any]:
    """Every other layer below a certain one may have a window."""
    count = hf_config.number("num_hidden_layers")
    below = hf_config.number("max_window_layers")
    window = used_window(hf_config)
    slides = [window is not None and layer % 2 == 0 and layer < below for layer in range(count)]
    kinds = [SLIDING if each else FULL for each in slides]
    return _with_dense_layers(hf_config, read_windows(hf_config, kinds, window))


def _write_windows(config: DecoderConfig) -> dict[str, Any]:
    kinds = write_windows(config.windows, config.num_layers)
    return kinds | {
        "use_sliding_window": any(config.windows),
        "max_window_layers": config.num_layers,
        **_dense_layers(config),
    }


_SHARED = block(
    "transformer",
    "model.layers.{}.mlp",
    {
        **{f"sublayers.1.shared.{part}": f"shared_expert.{name}" for part, name in MLP.items()},
        "sublayers.1.shared_gate": "shared_expert_gate",
    },
)


def _names(config: DecoderConfig) -> dict[str, str]:
    return NAMES | expert_names("mlp", **MLP) | dense_names(config, **MLP)


_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "norm_topk_prob": False,
    "router_aux_loss_coef": 0.001,
    "decoder_sparse_step": 1,
}

FORMATS = (
    llama_format(
        "qwen2_moe",
        "Qwen2Moe",
        (
            *USUAL_FIELDS,
            Value("self_attention.bias", "qkv_bias", True),
            Computed(_read_windows, _write_windows),
            *expert_fields("num_experts"),
            Number("feed_forward.dim", "moe_intermediate_size"),
            Number("feed_forward.shared.dim", "shared_expert_intermediate_size"),
            RENORMALIZE,
        ),
        {
            **_DEFAULTS,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "max_window_layers": 28,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
        },
        make=_qwen2_moe,
        weight_map=lambda config: WeightMap(_names(config) | _SHARED),
    ),
    llama_format(
        "qwen3_moe",
        "Qwen3Moe",
        (
            *USUAL_FIELDS,
            QUERY_KEY_NORM,
            BIASES,
            Computed(_read_window, _write_window),
            *expert_fields("num_experts"),
            Number("feed_forward.dim", "moe_intermediate_size"),
            RENORMALIZE,
        ),
        {
            **_DEFAULTS,
            "intermediate_size": 6144,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
        make=_qwen3_moe,
        weight_map=lambda config: WeightMap(_names(config)),
        prefixes=OLD_PREFIX,
        synonyms={"num_local_experts": "num_experts"},
    ),
)
