"""BART: the 2017 Transformer with learned positions, GELU and a norm after the embedding."""

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positional_schemes import Learned
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PostNorm
from jaxformer.zoo.system import System


def bart(num_layers: int, model_dim: int, num_heads: int) -> EncoderDecoderConfig:
    """The architecture in any size."""
    return EncoderDecoderConfig(
        vocab_size=50265,
        num_layers=num_layers,
        model_dim=model_dim,
        num_heads=num_heads,
        mlp_dim=4 * model_dim,
        position=Learned(max_length=1024),
        decoder_position=Learned(max_length=1024),
        norm=LayerNorm(eps=1e-5),
        embedding_norm=LayerNorm(eps=1e-5),
        residual=PostNorm(),
        activation="gelu",
        gated=False,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        depth_scaled_init=False,
        dropout=0.1,
    )


_SOURCE = "Lewis et al., 2019, https://arxiv.org/abs/1910.13461; the released models"

SYSTEMS = (
    System("bart-base", "bart.py:base", bart(6, 768, 12), "140M", _SOURCE),
    System("bart-large", "bart.py:large", bart(12, 1024, 16), "400M", _SOURCE),
)
