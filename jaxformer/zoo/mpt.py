"""MPT: ALiBi, and no bias anywhere."""

from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import ALiBi
from jaxformer.hub.fields import read_flags, read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.zoo.gpt import HEADS, TOKENS, fused, gpt
from jaxformer.zoo.llama import classes


def read_mpt(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    # Transformers computes the same whatever these say; a model trained otherwise would go wrong.
    hf_config.expect("expansion_ratio", 4)
    hf_config.expect("no_bias", True)
    hf_config.expect("embedding_fraction", 1.0)
    hf_config.expect("logit_scale", None)
    hf_config.expect("norm_type", "low_precision_layernorm", "layernorm")
    return gpt(
        **read_numbers(hf_config, _NUMBERS),
        **read_flags(hf_config, _FLAGS),
        **_read_attention(hf_config),
        position=ALiBi(),
        activation="gelu",
        norm=LayerNorm(eps=hf_config.number("layer_norm_epsilon"), bias=False),
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
    )


def write_mpt(config: DecoderConfig) -> dict[str, Any]:
    """And back; feed-forward layers are always four times as wide as the model."""
    return {
        **write_fields(config, _NUMBERS, _FLAGS),
        "layer_norm_epsilon": config.norm.eps,
        # A scale that is not given stays so.
        "attn_config": write_fields(config, _ATTENTION_NUMBERS)
        | {"softmax_scale": config.attention_scale},
    }


def _read_attention(hf_config: HFConfig) -> dict[str, Any]:
    """What "attn_config" says."""
    defaults = {"attn_pdrop": 0, "clip_qkv": None, "softmax_scale": None}
    found = hf_config.take("attn_config", None) or {}
    own = HFConfig(
        {"model_type": hf_config.values.get("model_type"), **defaults, **found},
        f"{hf_config.path}: attn_config",
    )
    own.expect("alibi", True)
    own.expect("alibi_bias_max", 8)
    own.expect("attn_type", "multihead_attention")
    for name in ("attn_uses_sequence_id", "prefix_lm", "qk_ln"):
        own.expect(name, False)
    fields = read_numbers(own, _ATTENTION_NUMBERS)
    own.finish(("attn_impl",))
    # There 0 is no bound.
    return fields | {"attention_clip": fields["attention_clip"] or None}


_NUMBERS = {
    "num_layers": "n_layers",
    "model_dim": "d_model",
    "num_heads": "n_heads",
    "vocab_size": "vocab_size",
    "dropout": "resid_pdrop",
    "embedding_dropout": "emb_pdrop",
}
_ATTENTION_NUMBERS = {
    "attention_dropout": "attn_pdrop",
    "attention_clip": "clip_qkv",
    "attention_scale": "softmax_scale",
}
_FLAGS = {"tie_embeddings": "tie_word_embeddings"}
_BLOCK = {
    "norms.0": "norm_1",
    "sublayers.0.attention.output": "attn.out_proj",
    "norms.1": "norm_2",
    "sublayers.1.up": "ffn.up_proj",
    "sublayers.1.down": "ffn.down_proj",
}
_WEIGHT_MAP = WeightMap(
    {
        "embedding": "transformer.wte",
        **block("transformer", "transformer.blocks.{}", _BLOCK),
        "transformer.final_norm": "transformer.norm_f",
        **HEADS,
    },
    fused=(fused("transformer.blocks.{}.attn.Wqkv", Concatenated()),),
)

FORMATS = (
    ModelFormat(
        model_type="mpt",
        read=read_mpt,
        write=write_mpt,
        weight_map=lambda _: _WEIGHT_MAP,
        architectures=classes("Mpt"),
        tiny={
            "vocab_size": 131,
            "d_model": 48,
            "n_heads": 6,
            "n_layers": 3,
            "max_seq_len": 20,
            "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.3},
            **TOKENS,
        },
        prefix="transformer.",
        copies={"lm_head.weight": "transformer.wte.weight"},
        harmless=(
            "fc_type",
            "init_config",
            "init_device",
            "learned_pos_emb",
            "max_seq_len",
            "tokenizer_name",
            "verbose",
        ),
        defaults={
            "vocab_size": 50368,
            "d_model": 2048,
            "n_layers": 24,
            "n_heads": 16,
            "resid_pdrop": 0.0,
            "emb_pdrop": 0.0,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        },
        synonyms={
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
)
