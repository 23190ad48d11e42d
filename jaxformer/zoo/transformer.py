"""The Transformer of 2017, and Marian, which is its form in transformers."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned, Sinusoidal
from jaxformer.hub.fields import Computed, ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks import Seq2SeqLMTask, Task
from jaxformer.hub.weights.layouts import Same
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PostNorm
from jaxformer.zoo.common.bart_like import (
    FIELDS,
    NAMES,
    POSITIONS,
    bart,
    bart_format,
    no_head_bias,
    sinusoidal_tables,
    without_head_bias,
)
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


def _read_marian(hf_config: HFConfig) -> dict[str, Any]:
    """The sinusoids are computed, and the two sides may have their own embeddings."""
    hf_config.expect("decoder_vocab_size", hf_config.number("vocab_size", 50265), None)
    position = Sinusoidal(layout="half")
    return POSITIONS.read(hf_config) | {
        "position": position,
        "decoder_position": position,
        "embedding_norm": None,
        "share_embeddings": hf_config.take("share_encoder_decoder_embeddings", True),
    }


def _write_marian(config: EncoderDecoderConfig) -> dict[str, Any]:
    return {
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings,
    }


def _weight_map(config: EncoderDecoderConfig) -> WeightMap:
    """The names of the tensors; there is one table of embeddings, or one on each side."""
    names = dict(NAMES)
    if not config.share_embeddings:
        names["embedding.table"] = "model.encoder.embed_tokens.weight"
        names["decoder_embedding.table"] = "model.decoder.embed_tokens.weight"
    return WeightMap(names, layouts={"heads.language_model.bias": Same(leading=1)})


def _with_tables(config: EncoderDecoderConfig, files: Tensors) -> EncoderDecoderConfig:
    """Only the file of a model without a head has the sinusoids, and its export has them again."""
    tables = [
        tensor for name, tensor in files.tensors.items() if name.endswith("embed_positions.weight")
    ]
    if config.heads or not tables:
        return without_head_bias(config, files)
    position = Learned(max_length=tables[0].shape[0], learns=False)
    return replace(config, position=position, decoder_position=position)


FORMATS = (
    bart_format(
        "marian",
        (Architecture("MarianMTModel", Seq2SeqLMTask()), Architecture("MarianModel", Task())),
        ConfigMap(bart, (*FIELDS, Computed(_read_marian, _write_marian))),
        {
            "vocab_size": 58101,
            "pad_token_id": 58100,
            "eos_token_id": 0,
            "decoder_start_token_id": 58100,
        },
        weight_map=_weight_map,
        buffers=("*.embed_positions.weight",),
        fitted=_with_tables,
        flax=FlaxFormat(fixed=sinusoidal_tables, unused=no_head_bias),
    ),
)
