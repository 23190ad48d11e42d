"""RoBERTa with its norms before the sublayers."""

from functools import partial

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.model_format import CountedByIds, ModelFormat
from jaxformer.hub.weights.weight_map import block
from jaxformer.nn.residual import PreNorm
from jaxformer.zoo.common.bert_like import (
    BLOCK,
    ENCODER_OR_DECODER,
    LABELS,
    LM_HEAD,
    ROBERTA,
    ROBERTA_FIELDS,
    bert,
    body,
    causal,
    encoder_or_decoder,
    head_copies,
    roberta_architectures,
    roberta_weight_map,
)
from jaxformer.zoo.common.cross_attention import NO_CROSS_ATTENTION
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "roberta-prelayernorm-large",
        "",
        bert(24, 1024, 16, **ROBERTA, residual=PreNorm()),
        "355M",
        "the sizes and the count of RoBERTa large, Liu et al., 2019, table 9, "
        "https://arxiv.org/abs/1907.11692, with the norms of Wettig et al., 2022, "
        "https://arxiv.org/abs/2202.08005",
    ),
)

_NAME = "roberta_prelayernorm"
_NORMS = {"norms.0": "attention.LayerNorm", "norms.1": "intermediate.LayerNorm"}
_NAMES = {
    **body(_NAME),
    **block("transformer", f"{_NAME}.encoder.layer.{{}}", BLOCK | _NORMS),
    "transformer.final_norm": f"{_NAME}.LayerNorm",
    **LABELS,
    **LM_HEAD,
}

FORMATS = (
    ModelFormat(
        model_type="roberta-prelayernorm",
        config_map=ConfigMap(
            partial(encoder_or_decoder, residual=PreNorm()),
            (ENCODER_OR_DECODER, NO_CROSS_ATTENTION, *ROBERTA_FIELDS),
        ),
        weight_map=partial(roberta_weight_map, _NAMES),
        architectures=(
            *roberta_architectures("RobertaPreLayerNorm"),
            causal("RobertaPreLayerNormForCausalLM", activation="gelu"),
        ),
        prefix=f"{_NAME}.",
        positions=CountedByIds(),
        buffers=("*.position_ids",),
        copies=head_copies(_NAME, "lm_head"),
        defaults={"vocab_size": 50265, "pad_token_id": 1},
        flax=FlaxFormat(states_end_normalised=False),
    ),
)
