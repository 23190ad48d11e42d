"""XLM-RoBERTa XL and XXL: norms before the sublayers, and none after the embeddings."""

from functools import partial

from jaxformer.hub.fields import Computed, ConfigMap
from jaxformer.hub.model_format import CountedByIds, ModelFormat
from jaxformer.hub.weights.weight_map import block
from jaxformer.nn import TokenEmbeddings
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
from jaxformer.zoo.system import System

_SOURCE = "Goyal et al., 2021, table 1, https://arxiv.org/abs/2105.00572"
_SIZES = ROBERTA | {
    "vocab_size": 250880,
    "embeddings": TokenEmbeddings(token_types=1),
    "residual": PreNorm(),
}

SYSTEMS = (
    System("xlm-roberta-xl", "", bert(36, 2560, 32, **_SIZES), "3.5B", _SOURCE),
    System("xlm-roberta-xxl", "", bert(48, 4096, 32, **_SIZES), "10.7B", _SOURCE),
)

_NAME = "roberta"
_NORMS = {"norms.0": "attention.self_attn_layer_norm", "norms.1": "LayerNorm"}
_NAMES = {
    **body(_NAME),
    **block("transformer", f"{_NAME}.encoder.layer.{{}}", BLOCK | _NORMS),
    "transformer.final_norm": f"{_NAME}.encoder.LayerNorm",
    **LABELS,
    **LM_HEAD,
}
_NO_EMBEDDING_NORM = Computed(lambda hf_config: {"embeddings.norm": None})

FORMATS = (
    ModelFormat(
        model_type="xlm-roberta-xl",
        config_map=ConfigMap(
            partial(encoder_or_decoder, residual=PreNorm()),
            (ENCODER_OR_DECODER, *ROBERTA_FIELDS, _NO_EMBEDDING_NORM),
        ),
        weight_map=partial(roberta_weight_map, _NAMES),
        architectures=(
            *roberta_architectures("XLMRobertaXL"),
            causal("XLMRobertaXLForCausalLM", activation="gelu"),
        ),
        prefix=f"{_NAME}.",
        positions=CountedByIds(),
        buffers=("*.position_ids",),
        copies=head_copies(_NAME, "lm_head"),
        defaults={
            "vocab_size": 250880,
            "hidden_size": 2560,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "intermediate_size": 10240,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
        },
    ),
)
