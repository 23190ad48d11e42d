"""DeepSeek-V2 and -V3: latent attention, dense first layers, and experts in groups.

V2 chooses experts by a softmax, V3 by biased sigmoids. V3's module that predicts a second token in
training is left out.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from jaxformer.functional.experts.losses import BalanceLoss
from jaxformer.functional.experts.routing import GroupedRouter, SigmoidTopK, SoftmaxTopK
from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.rope_scaling import YaRN
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Computed, Expect, Value
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.rope import Rope, read_rope, write_rope
from jaxformer.hub.weights.layouts import Concatenated, PerHead
from jaxformer.hub.weights.weight_map import Fused, WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import LatentAttention
from jaxformer.nn.experts import Experts, SharedExpert
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.experts import MLP, dense_names, expert_names
from jaxformer.zoo.common.llama_like import DEFAULTS, FIELDS, FILES, NAMES, llama, llama_format
from jaxformer.zoo.system import System

_deepseek = partial(llama, self_attention=LatentAttention(), feed_forward=Experts(losses=()))


def _published(
    *sizes: int, vocab_size: int, mscale: float, experts: Experts, query_rank: int | None = 1536
) -> DecoderConfig:
    """A published size: layers, width, heads, and the width of dense feed-forward layers."""
    scaling = YaRN(40.0, original_max_length=4096, mscale=mscale, mscale_all_dim=mscale)
    return _deepseek(
        *sizes,
        vocab_size=vocab_size,
        head_dim=192,
        value_dim=128,
        windows=(None,) * sizes[0],
        norm=RMSNorm(eps=1e-6),
        position=RoPE(theta=10_000.0, layout="interleaved", scaling=scaling),
        self_attention=LatentAttention(query_rank=query_rank),
        feed_forward=experts,
    )


def _v2_experts(num: int, dim: int, router: SoftmaxTopK) -> Experts:
    """The experts of DeepSeek-V2."""
    return Experts(
        num=num,
        per_token=6,
        dim=dim,
        router=router,
        shared=SharedExpert(dim=2 * dim),
        dense_layers=1,
        losses=(BalanceLoss(weight=0.001),),
    )


_V2 = {"vocab_size": 102_400, "mscale": 0.707}
_V2_SOURCE = "DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434; the released checkpoints"

SYSTEMS = (
    System(
        "deepseek-v2-lite",
        _published(
            27,
            2048,
            16,
            10_944,
            experts=_v2_experts(64, 1408, SoftmaxTopK(renormalize=False)),
            query_rank=None,
            **_V2,
        ),
        "15.7B",
        _V2_SOURCE,
    ),
    System(
        "deepseek-v2",
        _published(
            60,
            5120,
            128,
            12_288,
            experts=_v2_experts(
                160, 1536, SoftmaxTopK(groups=8, kept_groups=3, renormalize=False, scale=16.0)
            ),
            **_V2,
        ),
        "236B",
        _V2_SOURCE,
    ),
    System(
        "deepseek-v3",
        _published(
            61,
            7168,
            128,
            18_432,
            vocab_size=129_280,
            mscale=1.0,
            experts=Experts(
                num=256,
                per_token=8,
                dim=2048,
                router=SigmoidTopK(groups=8, kept_groups=4, scale=2.5),
                shared=SharedExpert(dim=2048),
                dense_layers=3,
                losses=(BalanceLoss(weight=0.0001),),
            ),
        ),
        "671B",
        "DeepSeek-AI, 2024, section 4.2, https://arxiv.org/abs/2412.19437",
        "deepseek_v3.py:671b",
    ),
)


def _read_attention(hf_config: HFConfig) -> dict[str, Any]:
    for derived in ("head_dim", "qk_head_dim"):
        hf_config.take(derived, None)
    rope = hf_config.number("qk_rope_head_dim")
    attention = LatentAttention(
        rank=hf_config.number("kv_lora_rank"),
        query_rank=hf_config.number("q_lora_rank", None),
        rope_dim=rope,
    )
    return {
        "self_attention": attention,
        "head_dim": hf_config.number("qk_nope_head_dim") + rope,
        "value_dim": hf_config.number("v_head_dim"),
    }


def _write_attention(config: DecoderConfig) -> dict[str, Any]:
    attention = config.self_attention
    return {
        "kv_lora_rank": attention.rank,
        "q_lora_rank": attention.query_rank,
        "qk_rope_head_dim": attention.rope_dim,
        "qk_nope_head_dim": config.head_width - attention.rope_dim,
        "v_head_dim": config.value_width,
    }


def _read_rope(hf_config: HFConfig) -> dict[str, Any]:
    hf_config.expect("rope_interleave", True, False)
    interleaved = hf_config.take("rope_interleave", True)
    return {"position": read_rope(hf_config, layout="interleaved" if interleaved else "half")}


def _write_rope(config: DecoderConfig) -> dict[str, Any]:
    written = write_rope(config.position)
    return written | {"rope_interleave": config.position.layout == "interleaved"}


def _read_experts(hf_config: HFConfig, router: GroupedRouter) -> dict[str, Any]:
    width, layers = hf_config.number("moe_intermediate_size"), hf_config.number("num_hidden_layers")
    dense = min(hf_config.number("first_k_dense_replace"), layers)
    experts = Experts(
        num=hf_config.number("n_routed_experts"),
        per_token=hf_config.number("num_experts_per_tok"),
        dim=width,
        router=replace(router, scale=float(hf_config.number("routed_scaling_factor"))),
        shared=SharedExpert(dim=width * hf_config.number("n_shared_experts")),
        dense_layers=dense,
        losses=(),
    )
    return {"feed_forward": experts, "windows": (None,) * (layers if dense else 1)}


def _read_softmax_experts(hf_config: HFConfig) -> dict[str, Any]:
    """Transformers ignores `norm_topk_prob` of DeepSeek-V2, and groups without their method."""
    hf_config.expect("norm_topk_prob", False)
    hf_config.expect("topk_method", _GREEDY, _IN_GROUPS)
    groups, kept = (hf_config.number(name, None) for name in ("n_group", "topk_group"))
    if hf_config.take("topk_method") == _GREEDY:
        groups = kept = 1
    return _read_experts(hf_config, SoftmaxTopK(groups, kept, renormalize=False))


def _read_sigmoid_experts(hf_config: HFConfig) -> dict[str, Any]:
    router = SigmoidTopK(
        groups=hf_config.number("n_group"),
        kept_groups=hf_config.number("topk_group"),
        renormalize=hf_config.take("norm_topk_prob"),
    )
    return _read_experts(hf_config, router)


def _write_softmax_experts(config: DecoderConfig) -> dict[str, Any]:
    grouped = config.feed_forward.router.groups > 1
    return _write_experts(config) | {"topk_method": _IN_GROUPS if grouped else _GREEDY}


def _write_experts(config: DecoderConfig) -> dict[str, Any]:
    experts, width = config.feed_forward, config.feed_forward.width(config)
    router, shared = experts.router, experts.shared
    return {
        "n_routed_experts": experts.num,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": width,
        "n_shared_experts": 0 if shared is None else shared.dim // width,
        "first_k_dense_replace": experts.dense_layers,
        "n_group": router.groups,
        "topk_group": router.kept_groups,
        "norm_topk_prob": router.renormalize,
        "routed_scaling_factor": router.scale,
    }


_GREEDY, _IN_GROUPS = "greedy", "group_limited_greedy"
_LAYER, _OURS = "model.layers.{}", "transformer.stack.group.*"
_PARTS = {
    "sublayers.0.attention.query_norm": "self_attn.q_a_layernorm",
    "sublayers.0.attention.query_up": "self_attn.q_b_proj",
    "sublayers.0.attention.value_norm": "self_attn.kv_a_layernorm",
    "sublayers.1.correction": "mlp.gate.e_score_correction_bias",
    **{f"sublayers.1.shared.{k}": f"mlp.shared_experts.{v}" for k, v in MLP.items()},
}
_LATENTS = Fused(
    tuple(f"{_OURS}.sublayers.0.attention.{part}" for part in ("value", "key")),
    f"{_LAYER}.self_attn.kv_a_proj_with_mqa",
    Concatenated(),
)
_KEYS_AND_VALUES = Fused(
    tuple(f"{_OURS}.sublayers.0.attention.{part}" for part in ("key_up", "value_up")),
    f"{_LAYER}.self_attn.kv_b_proj",
    PerHead(),
)


def _weight_map(config: DecoderConfig) -> WeightMap:
    query = "q_proj" if config.self_attention.query_rank is None else "q_a_proj"
    dense = dense_names(config, **MLP)
    own = _PARTS | {"sublayers.0.attention.query": f"self_attn.{query}"}
    names = NAMES | expert_names("mlp", **MLP) | block("transformer", _LAYER, own) | dense
    for fused in (_LATENTS, _KEYS_AND_VALUES):
        names = {path: name for path, name in names.items() if path not in fused.modules}
    return WeightMap(names, fused=(_LATENTS, _KEYS_AND_VALUES))


_FIELDS = (
    *(each for each in FIELDS if getattr(each, "ours", None) != "head_dim"),
    Computed(_read_attention, _write_attention),
    Value("self_attention.bias", "attention_bias", False),
    Activation(default="silu"),
    Expect("moe_layer_freq", 1),
)
_DEFAULTS = {
    **DEFAULTS,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
}
# The training loss of files with custom code, and where their experts are.
_HARMLESS = ("aux_loss_alpha", "ep_size", "seq_aux")

FORMATS = (
    llama_format(
        "deepseek_v2",
        "DeepseekV2",
        (
            *_FIELDS,
            Rope(layout="interleaved"),
            Computed(_read_softmax_experts, _write_softmax_experts),
            Expect("scoring_func", "softmax"),
            Expect("mlp_bias", False),
        ),
        {
            **_DEFAULTS,
            "vocab_size": 102_400,
            "num_key_value_heads": None,
            "n_shared_experts": 2,
            "n_routed_experts": 64,
            "routed_scaling_factor": 1.0,
            "n_group": None,
            "topk_group": None,
            "topk_method": _GREEDY,
            "first_k_dense_replace": 0,
            "moe_intermediate_size": 1407,
        },
        make=_deepseek,
        weight_map=_weight_map,
        without=("ForTokenClassification", "ForQuestionAnswering"),
        synonyms={"num_experts": "n_routed_experts"},
        harmless=_HARMLESS,
    ),
    llama_format(
        "deepseek_v3",
        "DeepseekV3",
        (
            *_FIELDS,
            Computed(_read_rope, _write_rope),
            Computed(_read_sigmoid_experts, _write_experts),
            Expect("scoring_func", "sigmoid"),
            Expect("topk_method", "noaux_tc"),
        ),
        {
            **_DEFAULTS,
            "vocab_size": 129_280,
            **their_sizes(61, 7168, 128, 18432),
            "moe_intermediate_size": 2048,
            "num_key_value_heads": 128,
            "n_shared_experts": 1,
            "n_routed_experts": 256,
            "routed_scaling_factor": 2.5,
            "n_group": 8,
            "topk_group": 4,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "norm_topk_prob": True,
            "max_position_embeddings": 4096,
        },
        make=_deepseek,
        weight_map=_weight_map,
        without=("ForQuestionAnswering",),
        synonyms={"num_local_experts": "n_routed_experts"},
        # The module that predicts a second token, which is the layer after the last one in
        # published files.
        harmless=(*_HARMLESS, "num_mtp_layers", "num_nextn_predict_layers"),
        buffers=(*FILES["buffers"], "model.layers.61.*"),
    ),
)
