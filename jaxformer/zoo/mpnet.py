"""MPNet: BERT with T5's biases in addition to learned positions."""

from functools import partial

from jaxformer.functional.positions.schemes import T5Bias
from jaxformer.hub.fields import ConfigMap, Constant, Expect
from jaxformer.nn import TokenEmbeddings
from jaxformer.zoo.common.basics import projections
from jaxformer.zoo.common.bert_like import (
    ENCODER,
    ROBERTA_FIELDS,
    TOKEN_TYPES,
    bert,
    body,
    roberta_architectures,
    roberta_format,
)
from jaxformer.zoo.common.cross_attention import NO_CROSS_ATTENTION

# These numbers are constants in transformers, regardless of config.json.
_BIAS = T5Bias(32, 128, bidirectional=True)
_FIELDS = (
    ENCODER,
    NO_CROSS_ATTENTION,
    Expect("pad_token_id", 1),
    Constant("relative_attention_num_buckets", _BIAS.num_buckets),
    *(field for field in ROBERTA_FIELDS if field != TOKEN_TYPES),
)
_BLOCK = projections("attention.attn", "o", parts="qkv") | {"norms.0": "attention.LayerNorm"}
_TABLE = "mpnet.encoder.relative_attention_bias.weight"
_NAMES = body("mpnet", own=_BLOCK) | {"transformer.inputs.relative_table": _TABLE}

FORMATS = (
    roberta_format(
        "mpnet",
        "MPNet",
        ConfigMap(partial(bert, embeddings=TokenEmbeddings(), relative_position=_BIAS), _FIELDS),
        lambda config: _NAMES,
        {"vocab_size": 30527},
        prefix="mpnet",
        architectures=roberta_architectures("MPNet"),
        harmless=("type_vocab_size",),
    ),
)
