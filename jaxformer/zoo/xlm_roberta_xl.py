"""XLM-RoBERTa XL and XXL: norms before the sublayers, and none after the embeddings."""

from functools import partial

from jaxformer.hub.fields import Computed, ConfigMap
from jaxformer.nn import TokenEmbeddings
from jaxformer.nn.residual import PreNorm
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.bert_like import (
    ENCODER_OR_DECODER,
    ROBERTA,
    ROBERTA_FIELDS,
    bert,
    body,
    encoder_or_decoder,
    roberta_format,
)
from jaxformer.zoo.system import System

_SOURCE = "Goyal et al., 2021, table 1, https://arxiv.org/abs/2105.00572"
_SIZES = ROBERTA | {
    "vocab_size": 250880,
    "embeddings": TokenEmbeddings(token_types=1),
    "residual": PreNorm(),
}

SYSTEMS = (
    System("xlm-roberta-xl", bert(36, 2560, 32, **_SIZES), "3.5B", _SOURCE),
    System("xlm-roberta-xxl", bert(48, 4096, 32, **_SIZES), "10.7B", _SOURCE),
)

_NORMS = {"norms.0": "attention.self_attn_layer_norm", "norms.1": "LayerNorm"}
_NAMES = body("roberta", own=_NORMS) | {"transformer.final_norm": "roberta.encoder.LayerNorm"}
_NO_EMBEDDING_NORM = Computed(lambda hf_config: {"embeddings.norm": None})

FORMATS = (
    roberta_format(
        "xlm-roberta-xl",
        "XLMRobertaXL",
        ConfigMap(
            partial(encoder_or_decoder, residual=PreNorm()),
            (ENCODER_OR_DECODER, *ROBERTA_FIELDS, _NO_EMBEDDING_NORM),
        ),
        lambda config: _NAMES,
        {
            "vocab_size": 250880,
            **their_sizes(36, 2560, 32, 10240),
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
    ),
)
