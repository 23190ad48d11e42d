"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT without next-sentence prediction."""

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.model_format import CountedByIds, ModelFormat
from jaxformer.models import MaskedLanguageModel
from jaxformer.nn import TokenEmbeddings
from jaxformer.zoo.common.bert_like import (
    ENCODER_OR_DECODER,
    LABELS,
    LM_HEAD,
    ROBERTA_FIELDS,
    bert,
    body,
    causal,
    encoder_or_decoder,
    roberta_architectures,
    with_classifier,
)
from jaxformer.zoo.common.cross_attention import KEPT_CROSS_ATTENTION
from jaxformer.zoo.system import System

_SOURCE = "Liu et al., 2019, section 3 and table 9, https://arxiv.org/abs/1907.11692"
_CAMEMBERT = "Martin et al., 2019, table 1, https://arxiv.org/abs/1911.03894"
_CHANGES = {
    "vocab_size": 50265,
    "position": Learned(max_length=512, offset=2),
    "pooler": None,
    "norm": LayerNorm(eps=1e-5),
    "embeddings": TokenEmbeddings(norm=LayerNorm(eps=1e-5), token_types=1),
    "heads": (MaskedLanguageModel(),),
}

SYSTEMS = (
    System("roberta-base", "roberta.py:base", bert(12, 768, 12, **_CHANGES), "125M", _SOURCE),
    System("roberta-large", "roberta.py:large", bert(24, 1024, 16, **_CHANGES), "355M", _SOURCE),
    System(
        "camembert-base",
        "",
        bert(12, 768, 12, **(_CHANGES | {"vocab_size": 32005})),
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
        weight_map=lambda config: with_classifier(
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
        copies={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        defaults={"vocab_size": vocab_size, "pad_token_id": 1},
    )


FORMATS = (
    _format("roberta", "Roberta", vocab_size=50265),
    _format("xlm-roberta", "XLMRoberta", vocab_size=30522),
    _format("camembert", "Camembert", vocab_size=30522),
)
