"""The Transformer of 2017."""

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positional_schemes import Sinusoidal
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PostNorm
from jaxformer.zoo.system import System

_SOURCE = "Vaswani et al., 2017, table 3, https://arxiv.org/abs/1706.03762"


def transformer(model_dim: int, num_heads: int, dropout: float) -> EncoderDecoderConfig:
    """The architecture in any width, with the English-German vocabulary."""
    return EncoderDecoderConfig(
        vocab_size=37000,
        num_layers=6,
        model_dim=model_dim,
        num_heads=num_heads,
        mlp_dim=4 * model_dim,
        position=Sinusoidal(),
        decoder_position=Sinusoidal(),
        norm=LayerNorm(eps=1e-6),
        residual=PostNorm(),
        activation="relu",
        gated=False,
        mlp_bias=True,
        embedding_scale=model_dim**0.5,
        depth_scaled_init=False,
        dropout=dropout,
    )


SYSTEMS = (
    System(
        "transformer-base",
        "transformer_2017.py:base",
        transformer(512, 8, dropout=0.1),
        "65M",
        _SOURCE,
        "41,000 tokens, as table 3's variations show; the text says about 37,000",
    ),
    System(
        "transformer-big",
        "transformer_2017.py:big",
        transformer(1024, 16, dropout=0.3),
        "213M",
        _SOURCE,
        "36,000 tokens",
    ),
)
