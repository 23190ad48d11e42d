"""OLMoE: 64 small experts in every layer, of which a token uses eight, and norms of all heads."""

from dataclasses import replace
from functools import partial

from jaxformer.functional.experts.losses import BalanceLoss, ZLoss
from jaxformer.functional.experts.routing import SoftmaxTopK
from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.fields import Expect
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.nn import DotProductAttention
from jaxformer.nn.experts import Experts
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.decoders import CLASSIFIERS
from jaxformer.zoo.common.experts import MLP, RENORMALIZE, expert_fields, expert_names
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    NAMES,
    QUERY_KEY_NORM,
    USUAL_FIELDS,
    llama,
    llama_format,
)
from jaxformer.zoo.system import System

_NORM = RMSNorm(eps=1e-5)
_EXPERTS = Experts(num=64, per_token=8, router=SoftmaxTopK(renormalize=False))
_olmoe = partial(
    llama,
    self_attention=DotProductAttention(query_key_norm=_NORM, query_key_norm_over="all_heads"),
    feed_forward=_EXPERTS,
)
# MegaBlocks divides the weight 0.01 by the layers and the experts of a token.
_LOSSES = (BalanceLoss(weight=0.01 / (16 * 8)), ZLoss(weight=0.001))

SYSTEMS = (
    System(
        "olmoe-1b-7b",
        _olmoe(
            16,
            2048,
            16,
            1024,
            vocab_size=50304,
            feed_forward=replace(_EXPERTS, losses=_LOSSES),
        ),
        "6.9B",
        "Muennighoff et al., 2024, table 10, https://arxiv.org/abs/2409.02060",
        "olmoe.py:1b-7b",
    ),
)

FORMATS = (
    llama_format(
        "olmoe",
        "Olmoe",
        (
            *USUAL_FIELDS,
            QUERY_KEY_NORM,
            BIASES,
            *expert_fields("num_experts"),
            RENORMALIZE,
            Expect("clip_qkv", None),
            Expect("sliding_window", None),
        ),
        {
            **DEFAULTS,
            "vocab_size": 50304,
            **their_sizes(16, 2048, 16, 2048),
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 1,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "router_aux_loss_coef": 0.01,
        },
        make=_olmoe,
        weights=WeightMap(NAMES | expert_names("mlp", **MLP)),
        without=CLASSIFIERS,
        synonyms={"num_local_experts": "num_experts"},
    ),
)
