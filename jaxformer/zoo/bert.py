"""BERT."""

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.model_format import ModelFormat
from jaxformer.zoo.common.bert_like import (
    BIAS,
    ENCODER_OR_DECODER,
    FIELDS,
    HARMLESS,
    HEADS,
    LABELS,
    architectures,
    bert,
    body,
    causal,
    encoder_or_decoder,
    head_copies,
    named,
)
from jaxformer.zoo.common.cross_attention import KEPT_CROSS_ATTENTION
from jaxformer.zoo.system import System

_SOURCE = "Devlin et al., 2018, section 3, https://arxiv.org/abs/1810.04805"

SYSTEMS = (
    System("bert-base", "bert.py:base", bert(12, 768, 12), "110M", _SOURCE),
    System("bert-large", "bert.py:large", bert(24, 1024, 16), "340M", _SOURCE),
)

FORMATS = (
    ModelFormat(
        model_type="bert",
        config_map=ConfigMap(
            encoder_or_decoder, (ENCODER_OR_DECODER, KEPT_CROSS_ATTENTION, *FIELDS)
        ),
        weight_map=lambda config: named(body("bert", config) | LABELS | HEADS, BIAS, config),
        architectures=(
            *architectures("Bert"),
            causal("BertLMHeadModel", "BertForCausalLM"),
        ),
        prefix="bert.",
        reads_encoder=True,
        buffers=("*.position_ids",),
        aliases={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
        copies=head_copies("bert"),
        harmless=HARMLESS,
    ),
)
