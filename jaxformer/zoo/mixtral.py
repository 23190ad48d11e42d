"""Mixtral: Mistral with eight experts in every layer, of which a token uses two."""

import warnings
from functools import partial
from typing import Any

from jaxformer.functional.experts.losses import BalanceLoss
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Computed
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn.experts import Experts
from jaxformer.zoo.common.experts import expert_fields, expert_names
from jaxformer.zoo.common.llama_like import DEFAULTS, FIELDS, NAMES, WINDOW, llama, llama_format
from jaxformer.zoo.system import System

_mixtral = partial(llama, feed_forward=Experts())


def _published(*sizes: int, loss: float, **changes: Any) -> DecoderConfig:
    """A published size, with a balancing loss of this weight."""
    return _mixtral(
        *sizes,
        num_kv_heads=8,
        position=RoPE(theta=1_000_000.0),
        feed_forward=Experts(losses=(BalanceLoss(weight=loss, over="all_layers"),)),
        **changes,
    )


SYSTEMS = (
    System(
        "mixtral-8x7b",
        _published(32, 4096, 32, 14336, loss=0.02),
        "47B",
        "Jiang et al., 2024, table 1, https://arxiv.org/abs/2401.04088",
        "mixtral.py:8x7b",
    ),
    System(
        "mixtral-8x22b",
        _published(56, 6144, 48, 16384, loss=0.001, vocab_size=32768),
        "141B",
        "Mistral AI, 2024, the announcement and the released checkpoints",
        "mixtral.py:8x22b",
    ),
)


def _read_jitter(hf_config: HFConfig) -> dict[str, Any]:
    """Noise on the router's input, in training only."""
    if noise := hf_config.number("router_jitter_noise", 0.0):
        warnings.warn(
            f"{hf_config.path}: router_jitter_noise = {noise} is left out: in training, routers "
            "read the states without noise",
            stacklevel=2,
        )
    return {}


FORMATS = (
    llama_format(
        "mixtral",
        "Mixtral",
        (
            *FIELDS,
            Rope(theta=1_000_000.0),
            Activation(default="silu"),
            WINDOW,
            *expert_fields("num_local_experts"),
            Computed(_read_jitter),
        ),
        {
            **DEFAULTS,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096 * 32,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "router_aux_loss_coef": 0.001,
        },
        make=_mixtral,
        weights=WeightMap(NAMES | expert_names("block_sparse_moe", gate="w1", up="w3", down="w2")),
        synonyms={"num_experts": "num_local_experts"},
        aliases={r"\.mlp\.(gate|experts)\.": r".block_sparse_moe.\1."},
    ),
)
