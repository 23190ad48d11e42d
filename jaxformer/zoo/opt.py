"""OPT: GPT-2 with ReLU; its 350M has post-norm and narrow embeddings."""

from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.fields import read_flags, read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import CountedByMask, ModelFormat
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import PostNorm, PreNorm
from jaxformer.zoo.gpt import HEADS, TOKENS, gpt
from jaxformer.zoo.llama import classes


def read_opt(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    hf_config.expect("_remove_final_layer_norm", False)
    hf_config.expect("layerdrop", 0.0)
    # Galactica's files say these; nothing reads them.
    hf_config.expect("learned_embeddings", True)
    hf_config.expect("scale_embeddings", False)
    fields = read_numbers(hf_config, _NUMBERS)
    learned = hf_config.take("layer_norm_elementwise_affine", True)
    width = hf_config.number("word_embed_proj_dim", None)
    return gpt(
        **fields,
        **read_flags(hf_config, _FLAGS),
        # Row 1 is for padding, and nothing reads row 0.
        position=Learned(max_length=hf_config.number("max_position_embeddings"), offset=2),
        residual=PreNorm() if hf_config.take("do_layer_norm_before", True) else PostNorm(),
        activation=read_activation(hf_config, "activation_function", "relu"),
        norm=LayerNorm(bias=learned, scale=learned),
        attention_output_bias=hf_config.take("enable_bias"),
        mlp_bias=hf_config.take("enable_bias"),
        embedding_dropout=0.0,
        padding_id=hf_config.number("pad_token_id", None),
        **(_NARROW | {"embedding_dim": width} if width not in (None, fields["model_dim"]) else {}),
    )


def write_opt(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_fields(config, _NUMBERS, _FLAGS),
        "max_position_embeddings": config.position.max_length,
        "do_layer_norm_before": isinstance(config.residual, PreNorm),
        "activation_function": write_activation(config.activation),
        "layer_norm_elementwise_affine": config.norm.scale,
        "word_embed_proj_dim": config.embedding_width,
    }


_NUMBERS = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "mlp_dim": "ffn_dim",
    "vocab_size": "vocab_size",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}
_FLAGS = {"attention_bias": "enable_bias", "tie_embeddings": "tie_word_embeddings"}
_NARROW = {"embedding_projection": "both"}
_BLOCK = {
    **attention(
        0,
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.out_proj",
    ),
    "norms.0": "self_attn_layer_norm",
    "sublayers.1.up": "fc1",
    "sublayers.1.down": "fc2",
    "norms.1": "final_layer_norm",
}
_WEIGHT_MAP = WeightMap(
    {
        "embedding": "model.decoder.embed_tokens",
        "transformer.inputs.position_table": "model.decoder.embed_positions.weight",
        "transformer.inputs.projection": "model.decoder.project_in",
        **block("transformer", "model.decoder.layers.{}", _BLOCK),
        "transformer.final_norm": "model.decoder.final_layer_norm",
        "transformer.projection": "model.decoder.project_out",
        **HEADS,
    }
)

FORMATS = (
    ModelFormat(
        model_type="opt",
        read=read_opt,
        write=write_opt,
        weight_map=lambda _: _WEIGHT_MAP,
        architectures=classes("OPT", without=("ForTokenClassification",)),
        tiny={
            "vocab_size": 131,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "ffn_dim": 56,
            "max_position_embeddings": 20,
            **TOKENS,
        },
        prefix="model.",
        positions=CountedByMask(padding=-1),
        copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
        harmless=("init_std",),
        defaults={
            "vocab_size": 50272,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "enable_bias": True,
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "pad_token_id": 1,
        },
    ),
)
