"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT without next-sentence prediction."""

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.model_format import ModelFormat
from jaxformer.zoo.common.bert_like import (
    READS_ENCODER,
    ROBERTA,
    ROBERTA_FIELDS,
    bert,
    body,
    encoder_or_decoder,
    roberta_format,
)
from jaxformer.zoo.system import System

_SOURCE = "Liu et al., 2019, section 3 and table 9, https://arxiv.org/abs/1907.11692"
_CAMEMBERT = "Martin et al., 2019, table 1, https://arxiv.org/abs/1911.03894"

SYSTEMS = (
    System("roberta-base", bert(12, 768, 12, **ROBERTA), "125M", _SOURCE, "roberta.py:base"),
    System("roberta-large", bert(24, 1024, 16, **ROBERTA), "355M", _SOURCE, "roberta.py:large"),
    System(
        "camembert-base", bert(12, 768, 12, **(ROBERTA | {"vocab_size": 32005})), "110M", _CAMEMBERT
    ),
)


def _format(model_type: str, name: str, vocab_size: int) -> ModelFormat:
    """Returns the format of RoBERTa, optionally under another name."""
    return roberta_format(
        model_type,
        name,
        ConfigMap(encoder_or_decoder, (*READS_ENCODER, *ROBERTA_FIELDS)),
        lambda config: body("roberta", config),
        {"vocab_size": vocab_size},
        reads_encoder=True,
    )


FORMATS = (
    _format("roberta", "Roberta", vocab_size=50265),
    _format("xlm-roberta", "XLMRoberta", vocab_size=30522),
    _format("camembert", "Camembert", vocab_size=30522),
)
