"""Blenderbot's small model: BART whose decoder adds positions after the embedding norm."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Computed, LearnedPositions
from jaxformer.hub.flax_format import Difference, FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.nn import TokenEmbeddings
from jaxformer.zoo.common.bart_like import bart, bart_format, classes, config_map, no_head_bias
from jaxformer.zoo.system import System

_SOURCE = "Roller et al., 2020, table 2, https://arxiv.org/abs/2004.13637"

SYSTEMS = (
    System(
        "blenderbot-small-90m",
        bart(
            8,
            512,
            16,
            mlp_dim=2048,
            vocab_size=54944,
            position=Learned(max_length=512),
            decoder_position=Learned(max_length=512, after_norm=True),
            embeddings=TokenEmbeddings(norm=LayerNorm(eps=1e-5), scale=512**0.5, padding_id=0),
            decoder_embedding_scale=1.0,
        ),
        "90M",
        _SOURCE,
    ),
)

_SCALED = Difference(
    "scale_embedding",
    "it scales the decoder's embeddings too, which changes their norm by the share of its epsilon",
    same=(False,),
)
_TABLE = LearnedPositions(default=512)


def _read_positions(hf_config: HFConfig) -> dict[str, Any]:
    position = _TABLE.read(hf_config)["position"]
    return {
        "position": position,
        "decoder_position": replace(position, after_norm=True),
        # In the encoder, it would only have the effect of the norm's epsilon.
        "decoder_embedding_scale": 1.0 if hf_config.take("scale_embedding", False) else None,
    }


FORMATS = (
    bart_format(
        "blenderbot-small",
        classes("BlenderbotSmall", "ForConditionalGeneration", "ForCausalLM", "Model"),
        config_map(bart, Computed(_read_positions, _TABLE.write)),
        {
            "encoder_layers": 8,
            "decoder_layers": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "max_position_embeddings": 512,
            "d_model": 512,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        flax=FlaxFormat(unused=no_head_bias, differences=(_SCALED,)),
    ),
)
