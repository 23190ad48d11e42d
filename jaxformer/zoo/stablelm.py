"""StableLM: Llama with layer norm and a quarter of each head rotated."""

from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.fields import read_flags, read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel, PreNorm
from jaxformer.zoo.llama import FILES, NAMES, classes, llama
from jaxformer.zoo.pythia import TINY


def read_stablelm(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    eps = hf_config.number("layer_norm_eps")
    parallel = hf_config.take("use_parallel_residual", False)
    normed = hf_config.take("qk_layernorm", False)
    return llama(
        **read_numbers(hf_config, _NUMBERS),
        **read_flags(hf_config, _FLAGS),
        position=read_rope(hf_config, fraction=0.25),
        residual=Parallel(shared_norm=True) if parallel else PreNorm(),
        norm=LayerNorm(eps=eps),
        query_key_norm=LayerNorm(eps=eps, bias=False) if normed else None,
        query_key_norm_over="each_head" if normed else "head",
        activation=read_activation(hf_config, "hidden_act", "silu"),
        embedding_dropout=0.0,
        padding_id=hf_config.number("pad_token_id", None),
    )


def write_stablelm(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_fields(config, _NUMBERS, _FLAGS),
        **write_rope(config.position, fraction_field="partial_rotary_factor"),
        "use_parallel_residual": isinstance(config.residual, Parallel),
        "qk_layernorm": config.query_key_norm is not None,
        "layer_norm_eps": config.norm.eps,
        "hidden_act": write_activation(config.activation),
    }


_NUMBERS = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "mlp_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
}
_FLAGS = {"attention_bias": "use_qkv_bias", "tie_embeddings": "tie_word_embeddings"}
_NORMS = {
    "sublayers.0.attention.query_norm": "self_attn.q_layernorm.norms.{}",
    "sublayers.0.attention.key_norm": "self_attn.k_layernorm.norms.{}",
}

FORMATS = (
    ModelFormat(
        model_type="stablelm",
        read=read_stablelm,
        write=write_stablelm,
        weight_map=lambda _: WeightMap(NAMES | block("transformer", "model.layers.{}", _NORMS)),
        architectures=classes("StableLm", without=("ForQuestionAnswering",)),
        tiny={
            **TINY,
            "num_key_value_heads": 2,
            "use_qkv_bias": True,
            "qk_layernorm": True,
            "max_position_embeddings": 20,
        },
        defaults={
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
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
