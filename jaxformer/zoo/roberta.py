"""RoBERTa: BERT without token types and next-sentence prediction, a larger vocabulary."""

from jaxformer.functional.norms import LayerNorm
from jaxformer.models import MaskedLanguageModel
from jaxformer.zoo.bert import bert
from jaxformer.zoo.system import System

_SOURCE = "Liu et al., 2019, section 3 and table 9, https://arxiv.org/abs/1907.11692"
_CHANGES = {
    "vocab_size": 50265,
    "token_types": 0,
    "pooler": None,
    "norm": LayerNorm(eps=1e-5),
    "embedding_norm": LayerNorm(eps=1e-5),
    "heads": (MaskedLanguageModel(),),
}

SYSTEMS = (
    System("roberta-base", "roberta.py:base", bert(12, 768, 12, **_CHANGES), "125M", _SOURCE),
    System("roberta-large", "roberta.py:large", bert(24, 1024, 16, **_CHANGES), "355M", _SOURCE),
)
