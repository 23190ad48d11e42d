"""Phi-3 and Phi-4-mini: Llama with fused projections, LongRoPE and, later, partial rotation."""

from jaxformer.errors import ConfigError
from jaxformer.functional.positions.rope import NoScaling
from jaxformer.functional.positions.rope_scaling import LongRoPE
from jaxformer.hub.fields import Activation, Expect, Number
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.zoo.common.basics import fused_attention, fused_gate, their_sizes
from jaxformer.zoo.common.llama_like import DEFAULTS, FIELDS, NAMES, WINDOW, llama_format


class _LongRope(Rope):
    """LongRoPE, whose lengths are separate fields."""

    def read(self, hf_config):
        fields = super().read(hf_config)
        scaling = fields["position"].scaling
        if not isinstance(scaling, NoScaling | LongRoPE):
            raise ConfigError(
                f"{hf_config.path}: the scaling {scaling} is not supported for model_type 'phi3': "
                "only longrope"
            )
        return fields

    def write(self, config):
        values = super().write(config)
        scaling = config.position.scaling
        if not isinstance(scaling, LongRoPE):
            return values
        original = scaling.original_max_length
        longest = round(scaling.factor * original)
        values["original_max_position_embeddings"] = original
        values["max_position_embeddings"] = longest
        if longest / original == scaling.factor and scaling.attention_factor is None:
            # Version 4 of transformers derives the rest from the lengths; it takes only these.
            values["rope_scaling"] = {
                "type": "longrope",
                "short_factor": list(scaling.short_factors),
                "long_factor": list(scaling.long_factors),
            }
        return values


_FIELDS = (
    Expect("full_attn_mod", 1),
    Expect("interpolate_factor", 1),
    *FIELDS,
    _LongRope(fraction=1.0, synonyms={"su": "longrope", "yarn": "longrope"}),
    Activation(default="silu"),
    WINDOW,
    Number("dropout", "resid_pdrop", 0.0),
    Number("embeddings.dropout", "embd_pdrop", 0.0),
)
_WEIGHT_MAP = WeightMap(
    NAMES,
    fused=(
        fused_attention("model.layers.{}.self_attn.qkv_proj", Concatenated()),
        fused_gate("model.layers.{}.mlp.gate_up_proj"),
    ),
)

FORMATS = (
    llama_format(
        "phi3",
        "Phi3",
        _FIELDS,
        {
            **DEFAULTS,
            "vocab_size": 32064,
            **their_sizes(32, 3072, 32, 8192),
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "pad_token_id": 32000,
        },
        weights=_WEIGHT_MAP,
        without=("ForQuestionAnswering",),
    ),
)
