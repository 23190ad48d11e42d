"""GPT, GPT-2 and GPT-3: learned positions, layer norm, biases everywhere."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.fields import read_flags, read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.weights.layouts import Concatenated, InOut, Layout
from jaxformer.hub.weights.weight_map import Fused, WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.nn import PostNorm
from jaxformer.zoo.llama import classes
from jaxformer.zoo.system import System


def gpt(num_layers: int, model_dim: int, num_heads: int, **changes) -> DecoderConfig:
    """The architecture of GPT-2 in any size."""
    fields = {
        "vocab_size": 50257,
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * model_dim,
        "position": Learned(max_length=1024),
        "norm": LayerNorm(eps=1e-5),
        "activation": "gelu_tanh",
        "gated": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }
    return DecoderConfig(**(fields | changes))


_GPT = "Radford et al., 2018, section 4.1 (117M in GPT-2's release notes)"
# The GPT-2 paper's own counts (117M, 345M, 762M, 1542M) were corrected with the release.
_GPT2 = "Radford et al., 2019, table 2, corrected in https://github.com/openai/gpt-2"
_GPT3 = "Brown et al., 2020, table 2.1, https://arxiv.org/abs/2005.14165"


def gpt3(num_layers: int, model_dim: int, num_heads: int) -> DecoderConfig:
    """GPT-3 with dense attention in every layer; the paper alternates it with a sparse pattern."""
    return gpt(num_layers, model_dim, num_heads, position=Learned(max_length=2048))


SYSTEMS = (
    System(
        "gpt",
        "gpt.py:117m",
        gpt(12, 768, 12, vocab_size=40478, position=Learned(max_length=512), residual=PostNorm()),
        "117M",
        _GPT,
    ),
    System("gpt2-small", "gpt2.py:small", gpt(12, 768, 12), "124M", _GPT2),
    System("gpt2-medium", "gpt2.py:medium", gpt(24, 1024, 16), "355M", _GPT2),
    System("gpt2-large", "gpt2.py:large", gpt(36, 1280, 20), "774M", _GPT2),
    System("gpt2-xl", "gpt2.py:xl", gpt(48, 1600, 25), "1558M", _GPT2),
    System("gpt3-small", "gpt3.py:small", gpt3(12, 768, 12), "125M", _GPT3),
    System("gpt3-medium", "gpt3.py:medium", gpt3(24, 1024, 16), "350M", _GPT3),
    System("gpt3-large", "gpt3.py:large", gpt3(24, 1536, 16), "760M", _GPT3),
    # The table says 24 heads of 128, which are wider than 2048: 16 give the published count.
    System("gpt3-xl", "gpt3.py:xl", gpt3(24, 2048, 16), "1.3B", _GPT3),
    System("gpt3-2.7b", "gpt3.py:2.7b", gpt3(32, 2560, 32), "2.7B", _GPT3),
    System("gpt3-6.7b", "gpt3.py:6.7b", gpt3(32, 4096, 32), "6.7B", _GPT3),
    # The table says 5140, which its 40 heads of 128 do not fill.
    System("gpt3-13b", "gpt3.py:13b", gpt3(40, 5120, 40), "13B", _GPT3),
    System("gpt3-175b", "gpt3.py:175b", gpt3(96, 12288, 96), "175B", _GPT3),
)


_NUMBERS = {
    "num_layers": "n_layer",
    "model_dim": "n_embd",
    "num_heads": "n_head",
    "vocab_size": "vocab_size",
    "dropout": "resid_pdrop",
    "embedding_dropout": "embd_pdrop",
    "attention_dropout": "attn_pdrop",
}
_FLAGS = {"tie_embeddings": "tie_word_embeddings"}
_SCALED = {"attention_scale_by_depth": "scale_attn_by_inverse_layer_idx"}


def read_gpt(hf_config: HFConfig, **fields: Any) -> DecoderConfig:
    """What GPT and its next relatives say alike; `fields` are those of ours that differ."""
    common = {
        **read_numbers(hf_config, _NUMBERS),
        **read_flags(hf_config, _FLAGS),
        "norm": LayerNorm(eps=hf_config.number("layer_norm_epsilon")),
    }
    return gpt(**(common | fields))


def write_gpt(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_fields(config, _NUMBERS, _FLAGS),
        "layer_norm_epsilon": config.norm.eps,
    }


def read_inner(hf_config: HFConfig) -> dict[str, Any]:
    """The feed-forward layers of those that may say how wide they are, and their activation."""
    return {
        "mlp_dim": hf_config.number("n_inner", None) or 4 * hf_config.number("n_embd"),
        "activation": read_activation(hf_config, "activation_function", "gelu_new"),
    }


def write_inner(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        "n_inner": config.mlp_dim,
        "activation_function": write_activation(config.activation),
    }


def read_gpt1(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    return read_gpt(
        hf_config,
        position=Learned(max_length=hf_config.number("n_positions")),
        residual=PostNorm(),
        activation=hf_config.choose("afn", _AFN, "gelu"),
    )


def write_gpt1(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_gpt(config),
        "n_positions": config.position.max_length,
        "afn": {"gelu_tanh": "gelu"}.get(config.activation, config.activation),
    }


# What GPT calls "gelu" is the tanh form, which transformers calls "gelu_new" elsewhere.
_AFN = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def read_gpt2(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    hf_config.expect("add_cross_attention", False)
    return read_gpt(
        hf_config,
        **read_inner(hf_config),
        **read_flags(hf_config, _SCALED),
        position=Learned(max_length=hf_config.number("n_positions")),
        attention_scale=None if hf_config.take("scale_attn_weights", True) else 1.0,
    )


def write_gpt2(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_gpt(config),
        **write_inner(config),
        **write_fields(config, _SCALED),
        "n_positions": config.position.max_length,
        "scale_attn_weights": config.attention_scale is None,
    }


def fused(tensor: str, layout: Layout) -> Fused:
    """The tensor that holds query, key and value of self-attention."""
    attention = "transformer.stack.group.*.sublayers.0.attention"
    return Fused(tuple(f"{attention}.{name}" for name in ("query", "key", "value")), tensor, layout)


HEADS = {
    "heads.language_model": "lm_head",
    "heads.label.output": "score",
    "heads.tags.output": "classifier",
    "heads.span.output": "qa_outputs",
}
BLOCK = {
    "norms.0": "ln_1",
    "norms.1": "ln_2",
    "sublayers.1.up": "mlp.c_fc",
    "sublayers.1.down": "mlp.c_proj",
}


def _weight_map(embedding: str, positions: str) -> WeightMap:
    """The names; kernels in the blocks are kept as [inputs, outputs]."""
    output = {"sublayers.0.attention.output": "attn.c_proj"}
    return WeightMap(
        {
            "embedding": f"transformer.{embedding}",
            "transformer.inputs.position_table": f"transformer.{positions}.weight",
            **block("transformer", "transformer.h.{}", BLOCK | output),
            "transformer.final_norm": "transformer.ln_f",
            **HEADS,
        },
        fused=(fused("transformer.h.{}.attn.c_attn", Concatenated(InOut())),),
        layouts={"transformer.stack.*.kernel": InOut()},
    )


def lm_head_model(stem: str, without: tuple[str, ...] = ()) -> tuple[Architecture, ...]:
    """The classes of a system whose language model is called <stem>LMHeadModel."""
    causal, *others = classes(stem, without)
    return (replace(causal, name=f"{stem}LMHeadModel"), *others)


DEFAULTS = {
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
TOKENS = {"bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 5}
TINY = {
    "vocab_size": 131,
    "n_embd": 48,
    "n_head": 6,
    "n_layer": 3,
    "n_positions": 20,
    **TOKENS,
}
FILES = {
    "prefix": "transformer.",
    "buffers": ("*.attn.bias", "*.attn.masked_bias"),
    "synonyms": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
}
"""What holds for the files of those that use GPT's names for their sizes."""
HARMLESS = ("n_ctx", "summary_*")

FORMATS = (
    ModelFormat(
        model_type="gpt2",
        read=read_gpt2,
        write=write_gpt2,
        weight_map=lambda _: _weight_map("wte", "wpe"),
        architectures=lm_head_model("GPT2"),
        tiny=TINY | {"n_inner": 56, "scale_attn_by_inverse_layer_idx": True},
        copies={"lm_head.weight": "transformer.wte.weight"},
        # Attention logits are float32 here with and without the last.
        harmless=(*HARMLESS, "reorder_and_upcast_attn"),
        defaults=DEFAULTS | {"scale_attn_by_inverse_layer_idx": False},
        **FILES,
    ),
    ModelFormat(
        model_type="openai-gpt",
        read=read_gpt1,
        write=write_gpt1,
        weight_map=lambda _: _weight_map("tokens_embed", "positions_embed"),
        architectures=lm_head_model(
            "OpenAIGPT", without=("ForTokenClassification", "ForQuestionAnswering")
        ),
        tiny=TINY,
        copies={"lm_head.weight": "transformer.tokens_embed.weight"},
        harmless=(*HARMLESS, "n_special", "predict_special_tokens"),
        defaults=DEFAULTS | {"vocab_size": 40478, "n_positions": 512},
        **FILES,
    ),
)
