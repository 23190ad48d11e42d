"""Whisper: an encoder over log-mel spectrograms, and a decoder that writes the transcript."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.fixed_table import SinusoidalTable
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import (
    Computed,
    ConfigMap,
    read_activation,
    write_activation,
    write_padding_id,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import Task, UnshiftedCausalLMTask
from jaxformer.hub.tasks.speech import ClipClassificationTask, TranscriptTask
from jaxformer.hub.weights.layouts import Convolution
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import CompositeConfig, DecoderConfig, LanguageModel, SpectrogramConfig
from jaxformer.nn import (
    MLP,
    DotProductAttention,
    DotProductCrossAttention,
    TokenEmbeddings,
    UnusedCrossAttention,
)
from jaxformer.zoo.common.bart_like import UNUSED, block_names
from jaxformer.zoo.common.wav2vec2_like import write_classifier
from jaxformer.zoo.system import System

_ATTENTION = DotProductAttention(bias=True, key_bias=False, output_bias=True)


def whisper(
    num_layers: int,
    model_dim: int,
    num_heads: int,
    *,
    num_decoder_layers: int | None = None,
    vocab_size: int = 51865,
    num_mel_bins: int = 80,
) -> CompositeConfig:
    """Returns Whisper in any size; `num_decoder_layers` None: as many as the encoder has.

    It has 51,864 tokens in English, 51,865 in many languages and 51,866 since large-v3; 80
    frequencies, and 128 since large-v3.
    """
    sizes = {"model_dim": model_dim, "num_heads": num_heads, "mlp_dim": 4 * model_dim}
    return CompositeConfig(
        _encoder(num_layers=num_layers, num_mel_bins=num_mel_bins, **sizes),
        _decoder(
            num_layers=num_layers if num_decoder_layers is None else num_decoder_layers,
            vocab_size=vocab_size,
            **sizes,
        ),
    )


def _encoder(**fields: Any) -> SpectrogramConfig:
    return SpectrogramConfig(self_attention=_ATTENTION, **fields)


def _decoder(**fields: Any) -> DecoderConfig:
    return DecoderConfig(
        **{
            "position": Learned(max_length=448),
            "norm": LayerNorm(eps=1e-5),
            "self_attention": _ATTENTION,
            "cross_attention": DotProductCrossAttention(),
            "feed_forward": MLP(activation="gelu", gated=False, bias=True),
            "tie_embeddings": True,
            "depth_scaled_init": False,
            "heads": (LanguageModel(),),
            **fields,
        }
    )


_CARDS = "Radford et al., 2022, https://arxiv.org/abs/2212.04356; the files of openai/whisper-*"
_TABLE = "Radford et al., 2022, table 1, https://arxiv.org/abs/2212.04356"
_RELEASES = "https://github.com/openai/whisper/blob/main/README.md; the released checkpoints"

# Table 1 has 39M, 74M, 244M and 769M for the smaller models, more than their files contain.
SYSTEMS = (
    System("whisper-tiny", whisper(4, 384, 6), "37.8M", _CARDS, "whisper.py:tiny"),
    System("whisper-base", whisper(6, 512, 8), "72.6M", _CARDS, "whisper.py:base"),
    System("whisper-small", whisper(12, 768, 12), "242M", _CARDS, "whisper.py:small"),
    System("whisper-medium", whisper(24, 1024, 16), "764M", _CARDS, "whisper.py:medium"),
    System("whisper-large", whisper(32, 1280, 20), "1550M", _TABLE, "whisper.py:large"),
    System(
        "whisper-large-v3",
        whisper(32, 1280, 20, vocab_size=51866, num_mel_bins=128),
        "1550M",
        _RELEASES,
    ),
    System(
        "whisper-large-v3-turbo",
        whisper(32, 1280, 20, num_decoder_layers=4, vocab_size=51866, num_mel_bins=128),
        "809M",
        _RELEASES,
    ),
)

# Configuration ----------------------------------------------------------------------------------

_Whisper = CompositeConfig | SpectrogramConfig | DecoderConfig
_SIDES = ("encoder", "decoder")
_SIZES = {
    "num_layers": ("layers", 4),
    "num_heads": ("attention_heads", 6),
    "mlp_dim": ("ffn_dim", 1536),
}
_CLASSIFIES, _CAUSAL = "WhisperForAudioClassification", "WhisperForCausalLM"


def _read(hf_config: HFConfig) -> dict[str, Any]:
    """Reads both sides; a classifier has only the encoder, a language model only the decoder."""
    activation = read_activation(hf_config, "activation_function", "gelu")
    shared = {
        "model_dim": hf_config.number("d_model", 384),
        "dropout": hf_config.number("dropout", 0.0),
        "feed_forward": MLP(activation=activation, gated=False, bias=True),
        "self_attention": replace(_ATTENTION, dropout=hf_config.number("attention_dropout", 0.0)),
    }
    sizes = {
        side: {
            ours: hf_config.number(f"{side}_{theirs}", default)
            for ours, (theirs, default) in _SIZES.items()
        }
        for side in _SIDES
    }
    encoder = shared | {
        "num_mel_bins": hf_config.number("num_mel_bins", 80),
        "position": SinusoidalTable(hf_config.number("max_source_positions", 1500)),
    }
    decoder = shared | {
        "vocab_size": hf_config.number("vocab_size", 51865),
        "position": Learned(hf_config.number("max_target_positions", 448)),
        "embeddings": TokenEmbeddings(padding_id=_padding_id(hf_config)),
        "tie_embeddings": hf_config.take("tie_word_embeddings", True),
    }
    named = hf_config.take("architectures", None) or [""]
    both = {"encoder": encoder | sizes["encoder"], "decoder": decoder | sizes["decoder"]}
    left_out = {_CLASSIFIES: "decoder", _CAUSAL: "encoder"}.get(named[0])
    return {side: fields for side, fields in both.items() if side != left_out}


def _padding_id(hf_config: HFConfig) -> int | None:
    """Reads the padding token; the usual one lies beyond a small vocabulary."""
    token = hf_config.number("pad_token_id", None)
    size = hf_config.number("vocab_size", 51865)
    return token if token is not None and token < size else None


def _build(
    encoder: dict[str, Any] | None = None, decoder: dict[str, Any] | None = None
) -> _Whisper:
    """Builds both sides, or only one: a decoder then keeps its cross-attention unused."""
    if encoder is None:
        return _decoder(**decoder, cross_attention=None, block=UnusedCrossAttention())
    alone = SpectrogramConfig(**encoder)
    return alone if decoder is None else CompositeConfig(alone, _decoder(**decoder))


def _write(config: _Whisper) -> dict[str, Any]:
    """Writes both sides, or only one."""
    parts = _parts(config)
    values = {
        f"{side}_{theirs}": getattr(part, ours)
        for side, part in parts.items()
        for ours, (theirs, _) in _SIZES.items()
    }
    for part in parts.values():
        values |= {
            "d_model": part.model_dim,
            "dropout": part.dropout,
            "attention_dropout": part.self_attention.dropout,
            "activation_function": write_activation(part.feed_forward.activation),
        }
    if "encoder" in parts:
        encoder = parts["encoder"]
        values |= {
            "num_mel_bins": encoder.num_mel_bins,
            "max_source_positions": encoder.position.max_length,
        }
    if "decoder" not in parts:
        return values | {"architectures": [_CLASSIFIES]} | write_classifier(config)
    decoder = parts["decoder"]
    return values | {
        "vocab_size": decoder.vocab_size,
        "max_target_positions": decoder.position.max_length,
        "tie_word_embeddings": decoder.tie_embeddings,
        **write_padding_id(decoder),
        **({} if config.parts else {"architectures": [_CAUSAL], "is_encoder_decoder": False}),
    }


def _parts(config: _Whisper) -> Mapping[str, Any]:
    """Returns the sides that a model has."""
    return config.parts or {"decoder" if isinstance(config, DecoderConfig) else "encoder": config}


# Weights ----------------------------------------------------------------------------------------


def _side(name: str, *kinds: str) -> dict[str, str]:
    """Returns the names of the blocks of a side, its positions and its final norm."""
    return {
        **block("transformer", f"model.{name}.layers.{{}}", block_names(kinds)),
        "transformer.inputs.position_table": f"model.{name}.embed_positions.weight",
        "transformer.final_norm": f"model.{name}.layer_norm",
    }


_ENCODER = WeightMap(
    {
        "convolutions.0": "model.encoder.conv1",
        "convolutions.1": "model.encoder.conv2",
        **_side("encoder", "self_attn"),
        "heads.label.dense.linear": "projector",
        "heads.label.output": "classifier",
        "heads.label.layer_weights": "layer_weights",
    },
    layouts={"convolutions.*.kernel": Convolution()},
)
_TOKENS = {"embedding": "model.decoder.embed_tokens", "heads.language_model": "proj_out"}
_DECODER = WeightMap(_TOKENS | _side("decoder", "self_attn", "encoder_attn"))
_DECODER_ALONE = WeightMap(
    _TOKENS
    | _side("decoder", "self_attn")
    | block("transformer", "model.decoder.layers.{}", UNUSED)
)


def _weight_map(config: _Whisper) -> WeightMap:
    encoder, decoder = (
        own.within(side, lambda name: name)
        for side, own in zip(_SIDES, (_ENCODER, _DECODER), strict=True)
    )
    # One side names the tensors of the other as well: files of other classes have them.
    if isinstance(config, DecoderConfig):
        return encoder | _DECODER_ALONE
    return (encoder if config.parts else _ENCODER) | decoder


FORMATS = (
    ModelFormat(
        model_type="whisper",
        config_map=ConfigMap(_build, (Computed(_read, _write),)),
        weight_map=_weight_map,
        architectures=(
            Architecture("WhisperForConditionalGeneration", TranscriptTask()),
            Architecture(_CLASSIFIES, ClipClassificationTask(), prefix=""),
            Architecture("WhisperModel", Task()),
            Architecture(_CAUSAL, UnshiftedCausalLMTask()),
        ),
        prefix="model.",
        copies={"proj_out.weight": "model.decoder.embed_tokens.weight"},
        # Transformers never reads scale_embedding; the tokens are read by `generate`.
        harmless=(
            "*_layerdrop", "activation_dropout", "scale_embedding", "median_filter_width",
            "apply_spec_augment", "mask_time_*", "mask_feature_*", "*suppress_tokens",
            "classifier_proj_size", "use_weighted_layer_sum",
        ),
        defaults={
            "pad_token_id": 50256,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
            "decoder_start_token_id": 50257,
            "tie_word_embeddings": True,
        },
        synonyms={
            "hidden_size": "d_model",
            "num_attention_heads": "encoder_attention_heads",
            "num_hidden_layers": "encoder_layers",
            "num_key_value_heads": "encoder_attention_heads",
        },
    ),
)  # fmt: skip
