"""GLM-4: interleaved RoPE on half of each head; GLM-4-0414 has more norms."""

from functools import partial
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Value
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention, SandwichNorm
from jaxformer.zoo.common.basics import fused_gate, their_sizes
from jaxformer.zoo.common.llama_like import DEFAULTS, FIELDS, NAMES, llama, llama_format, names
from jaxformer.zoo.system import System


def _glm(*sizes: int, **changes: Any) -> DecoderConfig:
    """GLM-4 in any size."""
    fields = {
        "vocab_size": 151_552,
        "num_kv_heads": 2,
        "head_dim": 128,
        "position": RoPE(theta=10_000.0, fraction=0.5, layout="interleaved"),
        "norm": RMSNorm(eps=1e-5),
        "self_attention": DotProductAttention(bias=True),
    }
    return llama(*sizes, **(fields | changes))


_GLM = "Team GLM, 2024, https://arxiv.org/abs/2406.12793"
_CARD = "Z.ai, 2025, the model card of GLM-4-0414"
_LARGE = {"self_attention": DotProductAttention(), "residual": SandwichNorm()}

SYSTEMS = (
    System("glm-4-9b", _glm(40, 4096, 32, 13696), "9B", _GLM),
    System("glm-4-9b-0414", _glm(40, 4096, 32, 13696, residual=SandwichNorm()), "9B", _CARD),
    System("glm-4-32b-0414", _glm(61, 6144, 48, 23040, **_LARGE), "32B", _CARD),
)

_FIELDS = (
    *FIELDS,
    Rope(fraction=0.5, layout="interleaved"),
    Activation(default="silu"),
    Value("self_attention.bias", "attention_bias", True),
)
_SECOND_NAMES = names(
    "input_layernorm",
    "post_self_attn_layernorm",
    "post_attention_layernorm",
    "post_mlp_layernorm",
)
_UP = fused_gate("model.layers.{}.mlp.gate_up_proj")
_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 151_552,
    **their_sizes(40, 4096, 32, 13696),
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1.5625e-07,
    "pad_token_id": 151_329,
}

FORMATS = (
    llama_format(
        "glm",
        "Glm",
        _FIELDS,
        _DEFAULTS,
        weights=WeightMap(NAMES, fused=(_UP,)),
        without=("ForQuestionAnswering",),
    ),
    llama_format(
        "glm4",
        "Glm4",
        _FIELDS,
        _DEFAULTS,
        make=partial(llama, residual=SandwichNorm()),
        weights=WeightMap(_SECOND_NAMES, fused=(_UP,)),
        without=("ForQuestionAnswering",),
    ),
)
