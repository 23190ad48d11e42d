"""BERT."""

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.zoo.common.bert_like import FIELDS, HEADS, LABELS, architectures, bert, body
from jaxformer.zoo.system import System

_SOURCE = "Devlin et al., 2018, section 3, https://arxiv.org/abs/1810.04805"

SYSTEMS = (
    System("bert-base", "bert.py:base", bert(12, 768, 12), "110M", _SOURCE),
    System("bert-large", "bert.py:large", bert(24, 1024, 16), "340M", _SOURCE),
)

FORMATS = (
    ModelFormat(
        model_type="bert",
        config_map=ConfigMap(bert, FIELDS),
        weight_map=lambda config: WeightMap(body("bert") | LABELS | HEADS),
        architectures=architectures("Bert"),
        prefix="bert.",
        buffers=("*.position_ids",),
        aliases={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
        copies={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        flax=FlaxFormat(classes={"BertForCausalLM": "BertLMHeadModel"}),
    ),
)
