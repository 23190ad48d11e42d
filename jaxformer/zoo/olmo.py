"""OLMo 2 and 3: Llama with norms after the sublayers, and query and key norms over all heads.

In OLMo 3, three of four layers have a window.
"""

from functools import partial
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.rope_scaling import YaRN
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import FULL, SLIDING, Activation, Computed, write_windows
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.rope import Rope, read_layer_ropes, write_layer_ropes
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import BranchNorm, DotProductAttention
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    FIELDS,
    QUERY_KEY_NORM,
    alternating_windows,
    llama,
    llama_format,
    names,
)
from jaxformer.zoo.system import System

_olmo = partial(
    llama,
    residual=BranchNorm(),
    self_attention=DotProductAttention(query_key_norm_over="all_heads"),
)
_THETA = 500_000.0


def _olmo3(*sizes: int, **changes: Any) -> DecoderConfig:
    """OLMo 3 in any size, for 65,536 tokens."""
    stretched = YaRN(factor=8.0, original_max_length=8192)
    return _olmo(
        *sizes,
        vocab_size=100_278,
        position=RoPE(theta=_THETA, scaling=stretched),
        window_position=RoPE(theta=_THETA),
        windows=(4096, 4096, 4096, None),
        norm=RMSNorm(eps=1e-6),
        self_attention=DotProductAttention(
            query_key_norm=RMSNorm(eps=1e-6), query_key_norm_over="all_heads"
        ),
        **changes,
    )


_SOURCE = "Team OLMo, 2025, https://arxiv.org/abs/2512.13961; the released checkpoints"

SYSTEMS = (
    System("olmo3-7b", _olmo3(32, 4096, 32, 11008), "7B", _SOURCE),
    System("olmo3-32b", _olmo3(64, 5120, 40, 27648, num_kv_heads=8), "32B", _SOURCE),
)

_FIELDS = (
    *FIELDS,
    QUERY_KEY_NORM,
    Activation(default="silu"),
    BIASES,
)
# Version 4 has no separate base for layers with a window; without rope_parameters, it is this one.
_BASES = {FULL: ("rope_theta", _THETA), SLIDING: (None, _THETA)}


def _read_layers(hf_config: HFConfig) -> dict[str, Any]:
    """Every fourth layer has full attention, and only these have scaled RoPE."""
    windows = alternating_windows(hf_config, 4, hf_config.number("sliding_window", None))
    ropes = read_layer_ropes(hf_config, _BASES, scaled=(FULL,))
    return {
        "windows": windows,
        "position": ropes[FULL],
        "window_position": ropes[SLIDING] if any(windows) else None,
    }


def _write_layers(config: DecoderConfig) -> dict[str, Any]:
    ropes = {FULL: config.position, SLIDING: config.window_position or config.position}
    return {
        **write_windows(config.windows, config.num_layers),
        **write_layer_ropes(ropes, {kind: name for kind, (name, _) in _BASES.items()}, FULL),
    }


_DEFAULTS = {**DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-5, "pad_token_id": 1}
_format = partial(
    llama_format,
    make=_olmo,
    weights=WeightMap(names("post_attention_layernorm", "post_feedforward_layernorm")),
    without=("ForTokenClassification", "ForQuestionAnswering"),
)

FORMATS = (
    _format("olmo2", "Olmo2", (*_FIELDS, Rope()), _DEFAULTS),
    _format(
        "olmo3",
        "Olmo3",
        (*_FIELDS, Computed(_read_layers, _write_layers)),
        _DEFAULTS | {"sliding_window": 4096},
    ),
)
