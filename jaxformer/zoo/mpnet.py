"""MPNet: BERT with T5's biases beside learned positions."""

from functools import partial

from jaxformer.functional.positions.schemes import T5Bias
from jaxformer.hub.fields import ConfigMap, Constant, Expect
from jaxformer.hub.model_format import CountedByIds, ModelFormat
from jaxformer.hub.weights.weight_map import attention, block
from jaxformer.nn import TokenEmbeddings
from jaxformer.zoo.common.bert_like import (
    BLOCK,
    ENCODER,
    LABELS,
    LM_HEAD,
    ROBERTA_FIELDS,
    TOKEN_TYPES,
    bert,
    body,
    head_copies,
    roberta_architectures,
    roberta_weight_map,
)
from jaxformer.zoo.common.cross_attention import NO_CROSS_ATTENTION

# These numbers are constants in transformers, whatever config.json has.
_PADDING_ID = 1
_BIAS = T5Bias(32, 128, bidirectional=True)
_FIELDS = (
    ENCODER,
    NO_CROSS_ATTENTION,
    Expect("pad_token_id", _PADDING_ID),
    Constant("relative_attention_num_buckets", _BIAS.num_buckets),
    *(field for field in ROBERTA_FIELDS if field != TOKEN_TYPES),
)
_PARTS = {part: f"attention.attn.{part[0]}" for part in ("query", "key", "value", "output")}
_BLOCK = BLOCK | attention(0, **_PARTS) | {"norms.0": "attention.LayerNorm"}
_NAMES = {
    **body("mpnet"),
    **block("transformer", "mpnet.encoder.layer.{}", _BLOCK),
    "transformer.inputs.relative_table": "mpnet.encoder.relative_attention_bias.weight",
    **LABELS,
    **LM_HEAD,
}

FORMATS = (
    ModelFormat(
        model_type="mpnet",
        config_map=ConfigMap(
            partial(bert, embeddings=TokenEmbeddings(), relative_position=_BIAS), _FIELDS
        ),
        weight_map=partial(roberta_weight_map, _NAMES),
        architectures=roberta_architectures("MPNet"),
        prefix="mpnet.",
        positions=CountedByIds(),
        buffers=("*.position_ids",),
        copies=head_copies("mpnet", "lm_head"),
        defaults={"vocab_size": 30527, "pad_token_id": _PADDING_ID},
        harmless=("type_vocab_size",),
    ),
)
