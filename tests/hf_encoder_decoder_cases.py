"""Encoder-decoders in both libraries."""

import hf_names
from hf_case import EPS, PAD, SIZES, VOCAB, Case, case

from jaxformer.functional import LayerNorm, Learned, RMSNorm, Sinusoidal, T5Bias
from jaxformer.hub.fields import build_with
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import PostNorm

WORDS = {"language_model": "logits"}


def encoder_decoder(**changes) -> EncoderDecoderConfig:
    fields = {"vocab_size": VOCAB, "model_dim": 48, "num_decoder_layers": 2}
    return build_with(EncoderDecoderConfig, SIZES | fields | changes)


T5_SIZES = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "d_model": 48,
    "d_kv": 5,
    "d_ff": 22,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
    "layer_norm_epsilon": EPS,
}


def t5(**changes) -> EncoderDecoderConfig:
    fields = {
        "position": T5Bias(8, 9, bidirectional=True),
        "decoder_position": T5Bias(8, 9, bidirectional=False),
        "norm": RMSNorm(eps=EPS),
        "head_dim": 5,
        "self_attention.scale": 1.0,
    }
    return encoder_decoder(**(fields | changes))


BART_SIZES = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 22,
    "decoder_ffn_dim": 22,
    "max_position_embeddings": 17,
    "decoder_start_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}


def transformer_2017(position, **changes) -> EncoderDecoderConfig:
    fields = {
        "position": position,
        "decoder_position": position,
        "norm": LayerNorm(eps=1e-5),
        "residual": PostNorm(),
        "feed_forward.gated": False,
        "self_attention.bias": True,
        "self_attention.output_bias": True,
        "feed_forward.bias": True,
        "head_bias": True,
    }
    return encoder_decoder(**(fields | changes))


def bart(scaled: bool) -> Case:
    config = transformer_2017(
        Learned(max_length=17, offset=2),
        embedding_norm=LayerNorm(eps=1e-5),
        **{"feed_forward.activation": "gelu"},
        embedding_scale=48**0.5 if scaled else 1.0,
    )
    theirs = BART_SIZES | {"scale_embedding": scaled}
    model = "BartForConditionalGeneration"
    return case(model, hf_names.BART, theirs, config, WORDS)


MARIAN_SIZES = BART_SIZES | {"scale_embedding": True, "activation_function": "relu"}
MARIAN = {
    "position": Sinusoidal(layout="half"),
    "feed_forward.activation": "relu",
    "embedding_scale": 48**0.5,
}

ENCODER_DECODERS = {
    "T5": case(
        "T5ForConditionalGeneration",
        hf_names.T5,
        T5_SIZES,
        t5(
            **{"feed_forward.gated": False, "feed_forward.activation": "relu"}, logit_scale=48**-0.5
        ),
        WORDS,
    ),
    "T5 v1.1": case(
        "T5ForConditionalGeneration",
        hf_names.T5_GATED,
        T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        t5(**{"feed_forward.activation": "gelu_tanh"}, tie_embeddings=False),
        WORDS,
    ),
    "mT5": case(
        "MT5ForConditionalGeneration",
        hf_names.T5_GATED,
        T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        t5(**{"feed_forward.activation": "gelu_tanh"}, tie_embeddings=False),
        WORDS,
    ),
    "BART": bart(scaled=False),
    "BART, scaled embeddings": bart(scaled=True),
    "Marian": case("MarianMTModel", hf_names.BART, MARIAN_SIZES, transformer_2017(**MARIAN), WORDS),
    "Marian, a table for each language": case(
        "MarianMTModel",
        hf_names.BART
        | {
            "embedding": "model.encoder.embed_tokens",
            "decoder_embedding": "model.decoder.embed_tokens",
        },
        MARIAN_SIZES | {"share_encoder_decoder_embeddings": False},
        transformer_2017(**MARIAN, share_embeddings=False),
        WORDS,
    ),
}
