"""T5Gemma: an encoder and a decoder, each a Gemma 2; their sizes may differ."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.fields import Computed, ConfigMap, Expect, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import (
    Architecture,
    Formats,
    ModelFormat,
    Section,
    section,
    start_token,
)
from jaxformer.hub.parts import with_parts
from jaxformer.hub.rope import Rope
from jaxformer.hub.tasks.classes import (
    Seq2SeqLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import CompositeConfig, DecoderConfig, EncoderConfig
from jaxformer.models.heads.labels import Pooling
from jaxformer.models.model import ModelConfig
from jaxformer.nn import (
    MLP,
    DotProductAttention,
    DotProductCrossAttention,
    TokenEmbeddings,
    VocabularyLogits,
)
from jaxformer.zoo.common.basics import projections
from jaxformer.zoo.common.encoders import PartAlone, of_family
from jaxformer.zoo.common.llama_like import names
from jaxformer.zoo.gemma import (
    CAPS,
    SECOND_DEFAULTS,
    SECOND_FIELDS,
    gemma2,
    read_alternating,
    write_alternating,
)
from jaxformer.zoo.system import System


def _encoder(**fields: Any) -> EncoderConfig:
    """Returns the encoder: Gemma 2 with bidirectional attention."""
    return of_family(EncoderConfig, gemma2(**fields))


_decoder = partial(gemma2, cross_attention=DotProductCrossAttention())


def _whole(
    encoder: EncoderConfig,
    decoder: DecoderConfig,
    tied: bool = True,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> CompositeConfig:
    """Returns the encoder and the decoder together; the decoder stores the encoder's width."""
    width = None if encoder.model_dim == decoder.model_dim else encoder.model_dim
    whole = CompositeConfig(encoder, replace(decoder, encoder_dim=width, tie_embeddings=tied))
    return _with_rates(whole, dropout, attention_dropout)


def _with_rates(
    config: ModelConfig, dropout: float = 0.0, attention_dropout: float = 0.0
) -> ModelConfig:
    """Returns the model, or both of its parts, with these dropout rates."""
    return config.with_fields(**{"dropout": dropout, "self_attention.dropout": attention_dropout})


# Sizes ------------------------------------------------------------------------------------------


def _sizes(num_layers: int, model_dim: int, num_heads: int, mlp_dim: int) -> dict[str, Any]:
    """Returns the fields of a Gemma 2 of this size."""
    return {
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "vocab_size": 256_000,
        "num_kv_heads": num_heads // 2,
        "head_dim": 256,
        "norm": RMSNorm(eps=1e-6, unit_offset=True),
        "self_attention": DotProductAttention(softcap=50.0),
        "feed_forward": MLP(activation="gelu_tanh"),
        "embeddings": TokenEmbeddings(scale=model_dim**0.5, padding_id=0),
        "logits": VocabularyLogits(softcap=30.0),
        "tie_embeddings": True,
    }


def _t5gemma(encoder: dict[str, Any], decoder: dict[str, Any]) -> CompositeConfig:
    """Returns T5Gemma with these sizes."""
    return _whole(
        _encoder(windows=(4097, None), **encoder), _decoder(windows=(4096, None), **decoder)
    )


_TWO = _sizes(26, 2304, 8, 9216)
_NINE = _sizes(42, 3584, 16, 14336)
_SOURCE = "Zhang et al., 2025, https://arxiv.org/abs/2504.06225; the released checkpoints"

SYSTEMS = (
    System("t5gemma-2b-2b", _t5gemma(_TWO, _TWO), "6B", _SOURCE),
    System("t5gemma-9b-2b", _t5gemma(_NINE, _TWO), "12B", _SOURCE),
    System("t5gemma-9b-9b", _t5gemma(_NINE, _NINE), "20B", _SOURCE),
)

# Files ------------------------------------------------------------------------------------------


def _read_windows(hf_config: HFConfig, ahead: bool) -> dict[str, Any]:
    """Reads the windows of every second layer; in the encoder they extend to both sides."""
    window = hf_config.number("sliding_window", None)
    return read_alternating(hf_config, 2, window + 1 if ahead and window else window)


def _write_windows(config: EncoderConfig | DecoderConfig) -> dict[str, Any]:
    written = write_alternating(config)
    if config.windows_ahead and (window := written["sliding_window"]):
        written["sliding_window"] = window - 1
    return written


def _part(name: str, build: Any, block_names: dict[str, str]) -> Section:
    """Reads the encoder or the decoder."""
    fields = (
        *SECOND_FIELDS,
        Computed(partial(_read_windows, ahead=name == "encoder"), _write_windows),
        Number("self_attention.softcap", "attn_logit_softcapping", None),
        Rope(),
    )
    own = names() | block("transformer", "model.layers.{}", block_names) | _HEADS
    model_format = ModelFormat(
        model_type="t5_gemma_module",
        config_map=ConfigMap(build, fields),
        weight_map=lambda _: WeightMap(own),
        architectures=(Architecture("", Task()),),
        prefix="model.",
        # In the decoder, only some classes mask padding.
        hides_padding=name == "encoder",
        buffers=("*.rotary_emb.inv_freq",),
        copies={"lm_head.out_proj.weight": "model.embed_tokens.weight"},
        # The whole model has these fields.
        harmless=("classifier_dropout_rate", "dropout_rate", "is_decoder"),
        defaults=SECOND_DEFAULTS | CAPS,
    )
    return Section(name, f"model.{name}.", model_format, model_format.architectures[0])


def _norms(*sublayers: str) -> dict[str, str]:
    """The names of the norms before and after each sublayer."""
    pairs = ((f"pre_{name}_layernorm", f"post_{name}_layernorm") for name in sublayers)
    return {f"norms.{i}": name for i, name in enumerate(sum(pairs, ()))}


_HEADS = {
    "heads.language_model": "lm_head.out_proj",
    "heads.label.output": "score.out_proj",
    "heads.tags.output": "score.out_proj",
}
_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_CROSS = {
    **projections("cross_attn", "o_proj", number=1),
    **{f"sublayers.2.{own}": name for own, name in _MLP.items()},
    **_norms("self_attn", "cross_attn", "feedforward"),
}


def _decoder_start_token(targets: jax.Array, hf_config: HFConfig) -> jax.Array:
    """The start token of the decoder's texts, then the targets."""
    decoder = section(hf_config, "decoder")
    tokens = {
        "decoder_start_token_id": decoder.get("bos_token_id", 2),
        "pad_token_id": decoder.get("pad_token_id", 0),
    }
    return start_token(targets, hf_config.with_values(**tokens))


@dataclass(frozen=True)
class _SequenceTask(SequenceClassificationTask):
    """A label from the decoder's state at the last token; the decoder reads the shifted inputs."""

    pooling: Pooling = "last"
    repeats_inputs: bool = field(default=True, kw_only=True)

    def decoder_mask(self, targets, inputs, hf_config):
        return _not_padding(targets, hf_config)

    def outputs(self, model, states, inputs, hf_config):
        real = _not_padding(inputs["input_ids"], hf_config)
        places = jnp.arange(real.shape[1])[None, :]
        last = jnp.max(real * places, axis=1, keepdims=True)
        chosen = places == jnp.minimum(last + 1, places.shape[1] - 1)
        return super().outputs(model, states._replace(valid=chosen), inputs, hf_config)


@dataclass(frozen=True)
class _TokenTask(TokenClassificationTask):
    """A label for each token of the decoder, which reads the shifted inputs."""

    repeats_inputs: bool = field(default=True, kw_only=True)

    def decoder_mask(self, targets, inputs, hf_config):
        return _not_padding(targets, hf_config)


def _not_padding(ids: jax.Array, hf_config: HFConfig) -> jax.Array:
    """The mask that transformers makes of ids if the decoder has no cache, int `[B, T]`."""
    return (ids != section(hf_config, "decoder").get("pad_token_id", 0)).astype(jnp.int32)


def _read_rates(hf_config: HFConfig) -> dict[str, float]:
    return {
        "dropout": hf_config.number("dropout_rate", 0.0),
        "attention_dropout": hf_config.number("attention_dropout", 0.0),
    }


def _write_rates(part: EncoderConfig | DecoderConfig) -> dict[str, Any]:
    return {
        "dropout_rate": part.dropout,
        "attention_dropout": part.self_attention.dropout,
        "vocab_size": part.vocab_size,
    }


_FIELDS = (
    Expect("is_encoder_decoder", True),
    Expect("layer_types", None),
    Computed(
        lambda hf_config: {
            "tied": hf_config.take("tie_word_embeddings", True),
            **_read_rates(hf_config),
        },
        lambda config: {
            "tie_word_embeddings": config.decoder.tie_embeddings,
            **_write_rates(config.decoder),
        },
    ),
)

_ENCODER = _part("encoder", _encoder, _norms("self_attn", "feedforward"))
_FILES = {
    "model_type": "t5gemma",
    "prefix": "model.",
    "defaults": {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "vocab_size": 256_000},
}


_ALONE = ModelFormat(
    config_map=PartAlone(
        lambda encoder, **rates: _with_rates(encoder, **rates),
        (
            Expect("is_encoder_decoder", False),
            Expect("layer_types", None),
            Computed(
                _read_rates,
                lambda config: {"is_encoder_decoder": False, **_write_rates(config.encoder)},
            ),
        ),
        {"encoder": _ENCODER},
    ),
    weight_map=lambda config: WeightMap(
        {
            path: name.replace("model.", "model.encoder.", 1)
            for path, name in _ENCODER.model_format.weight_map(config).names.items()
        }
    ),
    architectures=(
        Architecture("T5GemmaEncoderModel", Task()),
        Architecture(
            "T5GemmaForSequenceClassification", SequenceClassificationTask(pooling="last")
        ),
        Architecture("T5GemmaForTokenClassification", TokenClassificationTask()),
    ),
    hides_padding=True,
    buffers=_ENCODER.model_format.buffers,
    sections={"encoder": _ENCODER},
    harmless=("classifier_dropout_rate", "decoder", "tie_word_embeddings", "vocab_size"),
    **_FILES,
)


def _bind(
    whole: ModelFormat, hf_config: HFConfig, formats: Formats, config: ModelConfig | None
) -> ModelFormat:
    """Returns the format of T5Gemma, or of only the encoder if the file or our model is one."""
    alone = not hf_config.values.get("is_encoder_decoder", True)
    return _ALONE if alone or isinstance(config, EncoderConfig) else whole


FORMATS = (
    with_parts(
        ModelFormat(
            config_map=ConfigMap(_whole, _FIELDS),
            weight_map=lambda _: WeightMap({}),
            architectures=(
                Architecture("T5GemmaForConditionalGeneration", Seq2SeqLMTask()),
                Architecture("T5GemmaForSequenceClassification", _SequenceTask()),
                Architecture("T5GemmaForTokenClassification", _TokenTask()),
                Architecture("T5GemmaModel", Task()),
            ),
            shift=_decoder_start_token,
            harmless=("classifier_dropout_rate", "vocab_size"),
            bind=_bind,
            **_FILES,
        ),
        {"encoder": _ENCODER, "decoder": _part("decoder", _decoder, _CROSS)},
        WeightMap({}),
    ),
)
