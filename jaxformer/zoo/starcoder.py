"""StarCoder 2: Mistral with layer norm, biases, and feed-forward layers without a gate."""

from functools import partial
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, NormEps, Number, Value
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import MLP, DotProductAttention
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.llama_like import FIELDS, NAMES, WINDOW, llama, llama_format
from jaxformer.zoo.system import System

_starcoder = partial(llama, feed_forward=MLP(gated=False))
_BIASES = ("self_attention.bias", "self_attention.output_bias", "feed_forward.bias")


def _starcoder2(*sizes: int, **changes: Any) -> DecoderConfig:
    """StarCoder 2 in any size."""
    return _starcoder(
        *sizes,
        vocab_size=49152,
        norm=LayerNorm(eps=1e-5),
        self_attention=DotProductAttention(bias=True, output_bias=True),
        feed_forward=MLP(activation="gelu_tanh", gated=False, bias=True),
        windows=(4096,),
        tie_embeddings=True,
        **changes,
    )


_SOURCE = "Lozhkov et al., 2024, https://arxiv.org/abs/2402.19173"
_SMALL = _starcoder2(30, 3072, 24, 12288, num_kv_heads=2, position=RoPE(theta=999_999.4420358813))
_LARGE = _starcoder2(32, 4608, 36, 18432, num_kv_heads=4, position=RoPE(theta=1_000_000.0))

SYSTEMS = (
    System("starcoder2-3b", _SMALL, "3B", _SOURCE),
    System("starcoder2-7b", _LARGE, "7B", _SOURCE),
)

_FIELDS = (
    *(each for each in FIELDS if not isinstance(each, NormEps)),
    NormEps(theirs="norm_epsilon"),
    Rope(),
    Activation(default="gelu_pytorch_tanh"),
    WINDOW,
    Value(_BIASES[0], "use_bias", True, also=_BIASES[1:]),
    Number("dropout", "residual_dropout", 0.0),
    Number("embeddings.dropout", "embedding_dropout", 0.0),
)
_MLP = {"sublayers.1.up": "mlp.c_fc", "sublayers.1.down": "mlp.c_proj"}

FORMATS = (
    llama_format(
        "starcoder2",
        "Starcoder2",
        _FIELDS,
        {
            "vocab_size": 49152,
            **their_sizes(30, 3072, 24, 12288),
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        },
        make=_starcoder,
        weights=WeightMap(NAMES | block("transformer", "model.layers.{}", _MLP)),
        without=("ForQuestionAnswering",),
    ),
)
