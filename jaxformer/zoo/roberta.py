"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT without next-sentence prediction."""

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.model_format import CountedByIds, ModelFormat
from jaxformer.zoo.common.bert_like import (
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
from jaxformer.zoo.common.cross_attention import KEPT_CROSS_ATTENTION
from jaxformer.zoo.system import System

_SOURCE = "Liu et al., 2019, section 3 and table 9, https://arxiv.org/abs/1907.11692"
_CAMEMBERT = "Martin et al., 2019, table 1, https://arxiv.org/abs/1911.03894"

SYSTEMS = (
    System("roberta-base", "roberta.py:base", bert(12, 768, 12, **ROBERTA), "125M", _SOURCE),
    System("roberta-large", "roberta.py:large", bert(24, 1024, 16, **ROBERTA), "355M", _SOURCE),
    System(
        "camembert-base",
        "",
        bert(12, 768, 12, **(ROBERTA | {"vocab_size": 32005})),
        "110M",
        _CAMEMBERT,
    ),
)


def _format(model_type: str, name: str, vocab_size: int) -> ModelFormat:
    """Returns the format of RoBERTa, perhaps under another name."""
    return ModelFormat(
        model_type=model_type,
        config_map=ConfigMap(
            encoder_or_decoder, (ENCODER_OR_DECODER, KEPT_CROSS_ATTENTION, *ROBERTA_FIELDS)
        ),
        weight_map=lambda config: roberta_weight_map(
            body("roberta", config) | LABELS | LM_HEAD, config
        ),
        architectures=(
            *roberta_architectures(name),
            causal(f"{name}ForCausalLM", activation="gelu"),
        ),
        prefix="roberta.",
        reads_encoder=True,
        positions=CountedByIds(),
        buffers=("*.position_ids",),
        copies=head_copies("roberta", "lm_head"),
        defaults={"vocab_size": vocab_size, "pad_token_id": 1},
    )


FORMATS = (
    _format("roberta", "Roberta", vocab_size=50265),
    _format("xlm-roberta", "XLMRoberta", vocab_size=30522),
    _format("camembert", "Camembert", vocab_size=30522),
)
