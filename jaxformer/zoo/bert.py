"""BERT."""

from jaxformer.zoo.common.bert_like import bert, bert_format, causal
from jaxformer.zoo.system import System

_SOURCE = "Devlin et al., 2018, section 3, https://arxiv.org/abs/1810.04805"

SYSTEMS = (
    System("bert-base", bert(12, 768, 12), "110M", _SOURCE, "bert.py:base"),
    System("bert-large", bert(24, 1024, 16), "340M", _SOURCE, "bert.py:large"),
)

FORMATS = (
    bert_format(
        "Bert",
        causal("BertLMHeadModel", "BertForCausalLM"),
        aliases={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    ),
)
