"""ERNIE 4.5 without experts: Llama whose channels rotate in pairs of neighbours."""

from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Number, Value
from jaxformer.hub.rope import Rope
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.decoders import CLASSIFIERS
from jaxformer.zoo.common.llama_like import DEFAULTS, FIELDS, llama, llama_format
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "ernie-4.5-0.3b",
        llama(
            18,
            1024,
            16,
            3072,
            vocab_size=103_424,
            num_kv_heads=2,
            head_dim=128,
            position=RoPE(theta=500_000.0, layout="interleaved"),
            tie_embeddings=True,
        ),
        "0.36B",
        "Baidu, 2025, the model card of ERNIE-4.5-0.3B",
    ),
)

_DROPOUT = Number("self_attention.dropout", "attention_dropout", 0.0)
_BIASES = ("self_attention.output_bias", "feed_forward.bias")
# It never has attention dropout, regardless of its config.json.
_FIELDS = (
    *(each for each in FIELDS if each != _DROPOUT),
    Rope(theta=500_000.0, layout="interleaved"),
    Activation(default="silu"),
    Value("self_attention.bias", "use_bias", False, also=_BIASES),
)

FORMATS = (
    llama_format(
        "ernie4_5",
        "Ernie4_5",
        _FIELDS,
        {
            **DEFAULTS,
            "vocab_size": 103_424,
            **their_sizes(18, 1024, 16, 3072),
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 0,
            "tie_word_embeddings": True,
        },
        without=CLASSIFIERS,
        harmless=("attention_dropout",),
    ),
)
