"""Files config.json as version 4 and older ones wrote them, with much that nothing reads now."""

import json
from pathlib import Path

import pytest

from jaxformer.functional import (
    ALiBi,
    DistanceEmbedding,
    LayerNorm,
    Learned,
    NoPosition,
    RoPE,
    Sinusoidal,
)
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import config_values
from jaxformer.hub.hf_config import HFConfig
from jaxformer.io.components import value_at
from jaxformer.models.protein import TokenDropout
from jaxformer.nn import ConvolutionBlock, DisentangledAttention
from jaxformer.zoo import FORMATS

FILES = json.loads((Path(__file__).parents[1] / "fixtures/published_configs.json").read_text())
# Some fields of ours: those on which the odd ones of a file might have an effect.
EXPECTED = {
    "bart-large": {
        "mlp_dim": 4096,
        "position": Learned(max_length=1024, offset=2),
        "embeddings.scale": 1.0,
    },
    "bart-large-cnn": {"vocab_size": 50264, "decoder_layers": 12},
    "mbart-large-50": {
        "feed_forward.activation": "relu",
        "embeddings.scale": 32.0,
        "vocab_size": 250054,
    },
    "opus-mt-en-de": {
        "feed_forward.activation": "silu",
        "position": Sinusoidal(layout="half"),
        "embeddings.norm": None,
    },
    "pegasus-xsum": {
        "position": Learned(max_length=512, learns=False),
        "embeddings.norm": None,
    },
    "m2m100-418m": {
        "position": Sinusoidal(layout="half", endpoint=True, offset=2),
        "logits.bias": False,
    },
    "blenderbot-400m-distill": {
        "num_layers": 2,
        "decoder_layers": 12,
        "position": Learned(max_length=128),
    },
    "blenderbot-small-90m": {
        "decoder_position": Learned(max_length=512, after_norm=True),
        "embeddings.padding_id": 0,
    },
    "t5-small": {"tie_embeddings": True, "logits.scale": 512**-0.5, "feed_forward.gated": False},
    "t5-v1.1-small": {
        "tie_embeddings": False,
        "logits.scale": 1.0,
        "feed_forward.activation": "gelu_tanh",
    },
    "mt5-small": {"tie_embeddings": False, "vocab_size": 250112, "head_dim": 64},
    "gpt2": {"num_layers": 12, "position": Learned(max_length=1024), "mlp_dim": 3072},
    "gpt-neo-125m": {"windows": (None, 256), "mlp_dim": 3072, "self_attention.scale": 1.0},
    "gpt-j-6b": {"position": RoPE(fraction=0.25, layout="interleaved"), "logits.bias": True},
    "opt-125m": {"position": Learned(max_length=2048, offset=2), "embeddings.dim": None},
    "bloom-560m": {"model_dim": 1024, "num_heads": 16, "position": ALiBi()},
    "mpt-7b-storywriter": {"position": ALiBi(max_exponent=16.0), "self_attention.clip": 6},
    "nomic-embed-text-v1.5": {
        "position": RoPE(theta=1000.0),
        "mlp_dim": 3072,
        "feed_forward.gated": True,
        "self_attention.bias": False,
    },
    "eurobert-210m": {"position": RoPE(theta=250_000.0), "logits.bias": False},
    "esm2-t6-8m": {
        "position": RoPE(theta=10_000.0),
        "embeddings.norm": None,
        "token_dropout": TokenDropout(mask_id=32),
    },
    "deberta-base": {
        "position": NoPosition(),
        "relative_position": DistanceEmbedding(512),
        "self_attention": DisentangledAttention(key_bias=False),
    },
    "deberta-v2-xlarge": {
        "first_block": ConvolutionBlock(3, "gelu"),
        "windows": (None,) * 24,
        "pooler": None,
    },
    "deberta-v3-base": {
        "relative_position": DistanceEmbedding(512, 256, norm=LayerNorm(1e-7)),
        "self_attention": DisentangledAttention(share_projections=True),
        "first_block": None,
    },
    "xglm-564m": {"embeddings.scale": 32.0, "num_heads": 16, "mlp_dim": 4096},
}


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_understood_and_written_as_it_was(name):
    checkpoint = read_checkpoint(HFConfig(FILES[name]), FORMATS)
    found = {field: value_at(checkpoint.config, field) for field in EXPECTED[name]}
    assert found == EXPECTED[name]
    assert config_values(checkpoint) == FILES[name]
