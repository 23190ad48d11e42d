"""The Transformer of 2017, and Marian, its counterpart in transformers."""

from typing import Any

import numpy as np

from jaxformer.errors import DataError
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Sinusoidal
from jaxformer.hub.fields import Computed, LearnedPositions
from jaxformer.hub.flax_format import FlaxFormat, sinusoids
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.models import DecoderConfig, EncoderDecoderConfig
from jaxformer.nn import MLP, PostNorm, TokenEmbeddings
from jaxformer.zoo.common.bart_like import (
    bart,
    bart_format,
    classes,
    config_map,
    no_head_bias,
    sinusoidal_tables,
    without_head_bias,
)
from jaxformer.zoo.system import System

_SOURCE = "Vaswani et al., 2017, table 3, https://arxiv.org/abs/1706.03762"


def transformer(model_dim: int, num_heads: int, dropout: float) -> EncoderDecoderConfig:
    """Returns the architecture in any width, with the English-German vocabulary."""
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
        feed_forward=MLP(activation="relu", gated=False, bias=True),
        embeddings=TokenEmbeddings(scale=model_dim**0.5),
        depth_scaled_init=False,
        dropout=dropout,
    )


SYSTEMS = (
    System(
        "transformer-base",
        transformer(512, 8, dropout=0.1),
        "65M",
        _SOURCE,
        "transformer_2017.py:base",
        note="41,000 tokens, as table 3's variations show; the text says about 37,000",
    ),
    System(
        "transformer-big",
        transformer(1024, 16, dropout=0.3),
        "213M",
        _SOURCE,
        "transformer_2017.py:big",
        note="36,000 tokens",
    ),
)


_FILE_POSITIONS = LearnedPositions(default=1024, learns=False, also=("decoder_position",))
_TRANSLATOR = "MarianMTModel"


def _read_marian(hf_config: HFConfig) -> dict[str, Any]:
    """Reads sinusoidal positions, and whether the two sides have separate embeddings."""
    hf_config.expect("decoder_vocab_size", hf_config.number("vocab_size", 50265), None)
    # Files of translators have no sinusoids, but files of all other classes do.
    named = hf_config.take("architectures", None) or [_TRANSLATOR]
    positions = _FILE_POSITIONS.read(hf_config)
    if named[0] == _TRANSLATOR:
        positions = dict.fromkeys(positions, Sinusoidal(layout="half"))
    return positions | {
        "embeddings.norm": None,
        "share_embeddings": hf_config.take("share_encoder_decoder_embeddings", True),
    }


def _write_marian(config: EncoderDecoderConfig | DecoderConfig) -> dict[str, Any]:
    return {
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": getattr(config, "share_embeddings", True),
        **_FILE_POSITIONS.write(config),
    }


def _fitted(config: EncoderDecoderConfig | DecoderConfig, files: Tensors) -> Any:
    """Refuses tables of positions that differ from those computed here; transformers reads them."""
    for name, (shape, _) in files.tensors.items():
        computed = isinstance(config.position, Sinusoidal) and len(shape) == 2
        if not computed or not name.endswith("embed_positions.weight"):
            continue
        found = files.read(name).astype(np.float32)
        if not np.allclose(found, sinusoids(*shape, "half"), atol=1e-2):
            raise DataError(
                f"{files.folder}: {name} differs from the sinusoids that {_TRANSLATOR} computes: "
                "fetch the file again, or remove this table from it"
            )
    return without_head_bias(config, files)


FORMATS = (
    bart_format(
        "marian",
        classes("Marian", "MTModel", "ForCausalLM", "Model"),
        config_map(bart, Computed(_read_marian, _write_marian)),
        {
            "vocab_size": 58101,
            "pad_token_id": 58100,
            "eos_token_id": 0,
            "decoder_start_token_id": 58100,
        },
        buffers=("*.embed_positions.weight",),
        fitted=_fitted,
        flax=FlaxFormat(fixed=sinusoidal_tables, unused=no_head_bias),
    ),
)
