"""Blenderbot: a shallow encoder and a deep decoder, with norms before the sublayers."""

from functools import partial

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import LearnedPositions
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PreNorm, TokenEmbeddings
from jaxformer.zoo.common.bart_like import bart, bart_format, classes, config_map
from jaxformer.zoo.system import System

_blenderbot = partial(bart, residual=PreNorm(), embeddings=TokenEmbeddings())


def blenderbot(num_layers: int, model_dim: int) -> EncoderDecoderConfig:
    """Returns Blenderbot in any size."""
    return _blenderbot(
        2,
        model_dim,
        32,
        num_decoder_layers=num_layers,
        vocab_size=8008,
        position=Learned(max_length=128),
        decoder_position=Learned(max_length=128),
        embeddings=TokenEmbeddings(scale=model_dim**0.5, padding_id=0),
    )


_SOURCE = "Roller et al., 2020, section 2.2 and table 2, https://arxiv.org/abs/2004.13637"
_DISTILLED = "the released checkpoint, https://huggingface.co/facebook/blenderbot-400M-distill"

SYSTEMS = (
    System("blenderbot-400m-distill", blenderbot(12, 1280), "400M", _DISTILLED),
    # Its checkpoint is called blenderbot-3B.
    System("blenderbot-3b", blenderbot(24, 2560), "2.7B", _SOURCE),
)

FORMATS = (
    bart_format(
        "blenderbot",
        classes("Blenderbot", "ForConditionalGeneration", "ForCausalLM", "Model"),
        config_map(_blenderbot, LearnedPositions(default=128, also=("decoder_position",))),
        {
            "vocab_size": 8008,
            "encoder_layers": 2,
            "decoder_layers": 24,
            "encoder_attention_heads": 32,
            "decoder_attention_heads": 32,
            "encoder_ffn_dim": 10240,
            "decoder_ffn_dim": 10240,
            "d_model": 2560,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
)
