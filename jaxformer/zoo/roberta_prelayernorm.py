"""RoBERTa with its norms before the sublayers."""

from functools import partial

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.nn.residual import PreNorm
from jaxformer.zoo.common.bert_like import (
    ENCODER_OR_DECODER,
    ROBERTA,
    ROBERTA_FIELDS,
    bert,
    body,
    encoder_or_decoder,
    roberta_format,
)
from jaxformer.zoo.common.cross_attention import NO_CROSS_ATTENTION
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "roberta-prelayernorm-large",
        bert(24, 1024, 16, **ROBERTA, residual=PreNorm()),
        "355M",
        "the sizes and the count of RoBERTa large, Liu et al., 2019, table 9, "
        "https://arxiv.org/abs/1907.11692, with the norms of Wettig et al., 2022, "
        "https://arxiv.org/abs/2202.08005",
    ),
)

_NAME = "roberta_prelayernorm"
_NORMS = {"norms.0": "attention.LayerNorm", "norms.1": "intermediate.LayerNorm"}
_NAMES = body(_NAME, own=_NORMS) | {"transformer.final_norm": f"{_NAME}.LayerNorm"}

FORMATS = (
    roberta_format(
        "roberta-prelayernorm",
        "RobertaPreLayerNorm",
        ConfigMap(
            partial(encoder_or_decoder, residual=PreNorm()),
            (ENCODER_OR_DECODER, NO_CROSS_ATTENTION, *ROBERTA_FIELDS),
        ),
        lambda config: _NAMES,
        {"vocab_size": 50265},
        prefix=_NAME,
        flax=FlaxFormat(states_end_normalised=False),
    ),
)
