"""T5Gemma: an encoder and a decoder, each a Gemma 2 of its own size."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.fields import Computed, ConfigMap, Expect, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat, Section, StartToken, section
from jaxformer.hub.parts import with_parts
from jaxformer.hub.rope import Rope
from jaxformer.hub.tasks import Seq2SeqLMTask, Task
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import CompositeConfig, DecoderConfig, EncoderConfig
from jaxformer.nn import DotProductCrossAttention
from jaxformer.zoo.common.encoders import encoder_alone
from jaxformer.zoo.common.llama_like import names
from jaxformer.zoo.gemma import (
    SECOND_DEFAULTS,
    SECOND_FIELDS,
    gemma2,
    read_alternating,
    write_alternating,
)
from jaxformer.zoo.system import System


def _encoder(**fields: Any) -> EncoderConfig:
    """The encoder: Gemma 2 whose tokens see each other both ways."""
    return encoder_alone(gemma2(**fields))


_decoder = partial(gemma2, cross_attention=DotProductCrossAttention())


def _whole(
    encoder: EncoderConfig, decoder: DecoderConfig, tied: bool = True, **rates: float
) -> CompositeConfig:
    """The two together; the decoder reads the encoder in its own width."""
    width = None if encoder.model_dim == decoder.model_dim else encoder.model_dim
    return CompositeConfig(
        replace(encoder, **rates),
        replace(decoder, encoder_dim=width, tie_embeddings=tied, **rates),
    )


# Sizes ------------------------------------------------------------------------------------------


def _sizes(num_layers: int, model_dim: int, num_heads: int, mlp_dim: int) -> dict[str, Any]:
    """The fields of a Gemma 2 of that size."""
    return {
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "vocab_size": 256_000,
        "num_kv_heads": num_heads // 2,
        "head_dim": 256,
        "norm": RMSNorm(eps=1e-6, unit_offset=True),
        "activation": "gelu_tanh",
        "attention_softcap": 50.0,
        "logit_softcap": 30.0,
        "embedding_scale": model_dim**0.5,
        "tie_embeddings": True,
        "padding_id": 0,
    }


def _t5gemma(encoder: dict[str, Any], decoder: dict[str, Any]) -> CompositeConfig:
    """T5Gemma of two Gemmas."""
    return _whole(
        _encoder(windows=(4097, None), **encoder), _decoder(windows=(4096, None), **decoder)
    )


_TWO, _NINE = _sizes(26, 2304, 8, 9216), _sizes(42, 3584, 16, 14336)
_SOURCE = "Zhang et al., 2025, https://arxiv.org/abs/2504.06225; the released checkpoints"

SYSTEMS = (
    System("t5gemma-2b-2b", "", _t5gemma(_TWO, _TWO), "6B", _SOURCE),
    System("t5gemma-9b-2b", "", _t5gemma(_NINE, _TWO), "12B", _SOURCE),
    System("t5gemma-9b-9b", "", _t5gemma(_NINE, _NINE), "20B", _SOURCE),
)

# Files ------------------------------------------------------------------------------------------


def _read_windows(hf_config: HFConfig, ahead: bool) -> dict[str, Any]:
    """Every second layer has a window. In the encoder it has as many tokens on either side."""
    window = hf_config.number("sliding_window", None)
    return read_alternating(hf_config, 2, window + 1 if ahead and window else window)


def _write_windows(config: EncoderConfig | DecoderConfig) -> dict[str, Any]:
    written = write_alternating(config)
    if config.windows_ahead and (window := written["sliding_window"]):
        written["sliding_window"] = window - 1
    return written


def _part(name: str, build: Any, block_names: dict[str, str]) -> Section:
    """The encoder or the decoder in a file."""
    fields = (
        *SECOND_FIELDS,
        Computed(partial(_read_windows, ahead=name == "encoder"), _write_windows),
        Number("attention_softcap", "attn_logit_softcapping", None),
        Rope(),
    )
    own = names() | block("transformer", "model.layers.{}", block_names)
    model_format = ModelFormat(
        model_type="t5_gemma_module",
        config_map=ConfigMap(build, fields),
        weight_map=lambda _: WeightMap(own | {"heads.language_model": "lm_head.out_proj"}),
        architectures=(Architecture("", Task()),),
        prefix="model.",
        buffers=("*.rotary_emb.inv_freq",),
        copies={"lm_head.out_proj.weight": "model.embed_tokens.weight"},
        # The whole has them.
        harmless=("classifier_dropout_rate", "dropout_rate", "is_decoder"),
        defaults={
            **SECOND_DEFAULTS,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    )
    return Section(name, f"model.{name}.", model_format, model_format.architectures[0])


def _norms(*sublayers: str) -> dict[str, str]:
    """The names of the norms before and after each sublayer."""
    pairs = ((f"pre_{name}_layernorm", f"post_{name}_layernorm") for name in sublayers)
    return {f"norms.{i}": name for i, name in enumerate(sum(pairs, ()))}


_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_CROSS = {
    **attention(1, *(f"cross_attn.{part}_proj" for part in "qkvo")),
    **{f"sublayers.2.{own}": name for own, name in _MLP.items()},
    **_norms("self_attn", "cross_attn", "feedforward"),
}


@dataclass(frozen=True)
class _DecodersStart(StartToken):
    """The token with which the decoder's texts begin, then the targets."""

    def __call__(self, targets, hf_config):
        decoder = section(hf_config, "decoder")
        tokens = {
            "decoder_start_token_id": decoder.get("bos_token_id", 2),
            "pad_token_id": decoder.get("pad_token_id", 0),
        }
        return super().__call__(targets, hf_config.with_values(**tokens))


_FIELDS = (
    Expect("is_encoder_decoder", True),
    Expect("layer_types", None),
    Computed(
        lambda hf_config: {
            "tied": hf_config.take("tie_word_embeddings", True),
            "dropout": hf_config.number("dropout_rate", 0.0),
            "attention_dropout": hf_config.number("attention_dropout", 0.0),
        },
        lambda config: {
            "tie_word_embeddings": config.decoder.tie_embeddings,
            "dropout_rate": config.decoder.dropout,
            "attention_dropout": config.decoder.attention_dropout,
            "vocab_size": config.decoder.vocab_size,
        },
    ),
)

FORMATS = (
    with_parts(
        ModelFormat(
            model_type="t5gemma",
            config_map=ConfigMap(_whole, _FIELDS),
            weight_map=lambda _: WeightMap({}),
            architectures=(
                Architecture("T5GemmaForConditionalGeneration", Seq2SeqLMTask()),
                Architecture("T5GemmaModel", Task()),
            ),
            prefix="model.",
            shift=_DecodersStart(),
            harmless=("classifier_dropout_rate", "vocab_size"),
            defaults={
                "bos_token_id": 2,
                "eos_token_id": 1,
                "pad_token_id": 0,
                "vocab_size": 256_000,
            },
        ),
        {
            "encoder": _part("encoder", _encoder, _norms("self_attn", "feedforward")),
            "decoder": _part("decoder", _decoder, _CROSS),
        },
        WeightMap({}),
    ),
)
