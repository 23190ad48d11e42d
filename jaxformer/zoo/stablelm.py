"""StableLM: Llama with layer norm, and RoPE on a quarter of each head."""

from functools import partial

from jaxformer.hub.fields import (
    Activation,
    ConfigMap,
    Flag,
    NormEps,
    Number,
    PaddingId,
    Switch,
    numbers,
)
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.nn import Parallel, PreNorm, TokenEmbeddings
from jaxformer.zoo.common.basics import NUMBERS, their_sizes
from jaxformer.zoo.common.decoders import classes
from jaxformer.zoo.common.llama_like import FILES, NAMES, llama, norm_of_each_head

_FIELDS = (
    *numbers(NUMBERS),
    Number("num_kv_heads", "num_key_value_heads", None),
    Number("dropout", "hidden_dropout"),
    Number("self_attention.dropout", "attention_dropout"),
    Flag("self_attention.bias", "use_qkv_bias"),
    Flag("tie_embeddings", "tie_word_embeddings"),
    Rope(fraction=0.25),
    Switch(
        "residual",
        "use_parallel_residual",
        False,
        on=Parallel(shared_norm=True),
        off=PreNorm(),
    ),
    NormEps(),
    norm_of_each_head("qk_layernorm"),
    Activation(default="silu"),
    PaddingId(default=None),
)
_NORMS = {
    "sublayers.0.attention.query_norm": "self_attn.q_layernorm.norms.{}",
    "sublayers.0.attention.key_norm": "self_attn.k_layernorm.norms.{}",
}

FORMATS = (
    ModelFormat(
        model_type="stablelm",
        config_map=ConfigMap(partial(llama, embeddings=TokenEmbeddings(dropout=0.0)), _FIELDS),
        weight_map=lambda _: WeightMap(NAMES | block("transformer", "model.layers.{}", _NORMS)),
        architectures=classes("StableLm", without=("ForQuestionAnswering",)),
        defaults={
            "vocab_size": 50304,
            **their_sizes(32, 2560, 32, 6912),
            "num_key_value_heads": 32,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "use_qkv_bias": False,
            "layer_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        },
        **FILES,
    ),
)
