"""DistilBERT: every second layer of BERT base, without token types and pooler."""

from jaxformer.models import MaskedLanguageModel
from jaxformer.zoo.bert import bert
from jaxformer.zoo.system import System

_SOURCE = "Sanh et al., 2019, table 3, https://arxiv.org/abs/1910.01108"

SYSTEMS = (
    System(
        "distilbert-base",
        "distilbert.py:base",
        bert(6, 768, 12, token_types=0, pooler=None, heads=(MaskedLanguageModel(),)),
        "66M",
        _SOURCE,
    ),
)
