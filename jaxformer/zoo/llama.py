"""Llama 1 to 3.2, and Mistral, which adds a window."""

from collections.abc import Mapping
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.rope_scaling import Llama3Scaling
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.rope import read_rope, write_rope
from jaxformer.hub.tasks import (
    CausalLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import DecoderConfig
from jaxformer.zoo.system import System


def llama(
    num_layers: int, model_dim: int, num_heads: int, mlp_dim: int, **changes
) -> DecoderConfig:
    """The architecture of Llama 2 in any size."""
    fields = {
        "vocab_size": 32000,
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": mlp_dim,
        "position": RoPE(theta=10_000.0),
        "norm": RMSNorm(eps=1e-5),
        "tie_embeddings": False,
    }
    return DecoderConfig(**(fields | changes))


_ONE = {"norm": RMSNorm(eps=1e-6)}
_THREE = {"vocab_size": 128256, "num_kv_heads": 8, "position": RoPE(theta=500_000.0)}
_STRETCHED = RoPE(theta=500_000.0, scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192))
_SMALL = _THREE | {"position": _STRETCHED, "tie_embeddings": True}

_LLAMA1 = "Touvron et al., 2023, table 2, https://arxiv.org/abs/2302.13971"
_LLAMA2 = "Touvron et al., 2023, https://arxiv.org/abs/2307.09288"
_LLAMA3 = "Llama Team, 2024, table 3, https://arxiv.org/abs/2407.21783"
_LLAMA32 = "Meta, 2024, the model card of Llama 3.2"

SYSTEMS = (
    System("llama-7b", "llama.py:llama-7b", llama(32, 4096, 32, 11008, **_ONE), "6.7B", _LLAMA1),
    System("llama-13b", "llama.py:llama-13b", llama(40, 5120, 40, 13824, **_ONE), "13.0B", _LLAMA1),
    System("llama-33b", "llama.py:llama-33b", llama(60, 6656, 52, 17920, **_ONE), "32.5B", _LLAMA1),
    System("llama-65b", "llama.py:llama-65b", llama(80, 8192, 64, 22016, **_ONE), "65.2B", _LLAMA1),
    System("llama2-7b", "llama.py:llama2-7b", llama(32, 4096, 32, 11008), "7B", _LLAMA2),
    System("llama2-13b", "llama.py:llama2-13b", llama(40, 5120, 40, 13824), "13B", _LLAMA2),
    System(
        "llama2-70b",
        "llama.py:llama2-70b",
        llama(80, 8192, 64, 28672, num_kv_heads=8),
        "70B",
        _LLAMA2,
    ),
    System("llama3-8b", "llama.py:llama3-8b", llama(32, 4096, 32, 14336, **_THREE), "8B", _LLAMA3),
    System(
        "llama3-70b", "llama.py:llama3-70b", llama(80, 8192, 64, 28672, **_THREE), "70B", _LLAMA3
    ),
    System(
        "llama3-405b",
        "llama.py:llama3-405b",
        llama(126, 16384, 128, 53248, **_THREE),
        "405B",
        _LLAMA3,
    ),
    System(
        "llama3.2-1b",
        "llama.py:llama3.2-1b",
        llama(16, 2048, 32, 8192, **_SMALL),
        "1.23B",
        _LLAMA32,
    ),
    System(
        "llama3.2-3b",
        "llama.py:llama3.2-3b",
        llama(28, 3072, 24, 8192, **_SMALL),
        "3.21B",
        _LLAMA32,
    ),
    System(
        "mistral-7b",
        "mistral.py:7b",
        llama(32, 4096, 32, 14336, num_kv_heads=8, windows=(4096,)),
        "7.3B",
        "Jiang et al., 2023, table 1, https://arxiv.org/abs/2310.06825; the announcement",
    ),
)


def read_sizes(hf_config: HFConfig, **fields: Any) -> DecoderConfig:
    """What Llama's relatives say alike; `fields` are those of our configuration that differ."""
    pad = hf_config.number("pad_token_id", None)
    common = {
        "vocab_size": hf_config.number("vocab_size"),
        "num_kv_heads": hf_config.number("num_key_value_heads", None),
        "head_dim": hf_config.number("head_dim", None),
        "norm": RMSNorm(eps=hf_config.number("rms_norm_eps")),
        "tie_embeddings": hf_config.take("tie_word_embeddings"),
        # A negative id counts from the end of the table; those of Llama 1 have -1.
        "padding_id": hf_config.number("vocab_size") + pad if pad is not None and pad < 0 else pad,
        "attention_dropout": hf_config.number("attention_dropout", 0.0),
    }
    return llama(
        hf_config.number("num_hidden_layers"),
        hf_config.number("hidden_size"),
        hf_config.number("num_attention_heads"),
        hf_config.number("intermediate_size"),
        **(common | fields),
    )


def write_sizes(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.model_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.mlp_dim,
        "rms_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_dropout": config.attention_dropout,
    }


def read_biases(hf_config: HFConfig) -> dict[str, bool]:
    """The fields for the biases of the attention, which has all or none."""
    biased = hf_config.take("attention_bias", False)
    return {"attention_bias": biased, "attention_output_bias": biased}


def read_llama(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    return read_sizes(
        hf_config,
        position=read_rope(hf_config),
        activation=read_activation(hf_config, "hidden_act", "silu"),
        mlp_bias=hf_config.take("mlp_bias", False),
        **read_biases(hf_config),
    )


def write_llama(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_sizes(config),
        **write_rope(config.position),
        "hidden_act": write_activation(config.activation),
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }


def read_mistral(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    return read_sizes(
        hf_config,
        position=read_rope(hf_config),
        activation=read_activation(hf_config, "hidden_act", "silu"),
        windows=(hf_config.number("sliding_window", None),),
    )


def write_mistral(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    return {
        **write_sizes(config),
        **write_rope(config.position),
        "hidden_act": write_activation(config.activation),
        "sliding_window": config.windows[0],
    }


def names(*norms: str) -> dict[str, str]:
    """The names of the modules of Llama's relatives, with those of a block's norms in order."""
    parts = {
        **attention(
            0,
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            output="self_attn.o_proj",
        ),
        "sublayers.0.attention.query_norm": "self_attn.q_norm",
        "sublayers.0.attention.key_norm": "self_attn.k_norm",
        "sublayers.1.gate": "mlp.gate_proj",
        "sublayers.1.up": "mlp.up_proj",
        "sublayers.1.down": "mlp.down_proj",
        **{f"norms.{number}": norm for number, norm in enumerate(norms)},
    }
    return {
        "embedding": "model.embed_tokens",
        **block("transformer", "model.layers.{}", parts),
        "transformer.final_norm": "model.norm",
        "heads.language_model": "lm_head",
        "heads.label.output": "score",
        "heads.tags.output": "score",
        "heads.span.output": "qa_outputs",
    }


NAMES = names("input_layernorm", "post_attention_layernorm")
_TASKS = {
    "ForCausalLM": CausalLMTask(),
    "ForSequenceClassification": SequenceClassificationTask(pooling="last", bias=False),
    "ForTokenClassification": TokenClassificationTask(),
    "ForQuestionAnswering": QuestionAnsweringTask(),
    "Model": Task(),
}


def classes(
    name: str, without: tuple[str, ...] = (), prefixes: Mapping[str, str] | None = None
) -> tuple[Architecture, ...]:
    """The classes of a system: `classes("Olmo2", without=("ForTokenClassification", ...))`.

    Args:
        name: What their names begin with.
        without: Those that it does not have.
        prefixes: What comes before the names of the body, where it is not "model.".
    """
    return tuple(
        Architecture(name + kind, task, prefix=(prefixes or {}).get(kind))
        for kind, task in _TASKS.items()
        if kind not in without
    )


OLD_PREFIX = {"ForQuestionAnswering": "transformer."}
DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
TINY = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 20,
    "pad_token_id": 3,
}
FILES = {
    "prefix": "model.",
    "buffers": ("*.rotary_emb.inv_freq",),
    "copies": {"lm_head.weight": "model.embed_tokens.weight"},
}
"""What holds for the files of all relatives."""

FORMATS = (
    ModelFormat(
        model_type="llama",
        read=read_llama,
        write=write_llama,
        weight_map=lambda config: WeightMap(NAMES),
        architectures=classes("Llama", prefixes=OLD_PREFIX),
        tiny={
            **TINY,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            },
        },
        defaults=DEFAULTS,
        **FILES,
    ),
    ModelFormat(
        model_type="mistral",
        read=read_mistral,
        write=write_mistral,
        weight_map=lambda config: WeightMap(NAMES),
        architectures=classes("Mistral"),
        tiny={**TINY, "sliding_window": 4},
        defaults={
            **DEFAULTS,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096 * 32,
            "sliding_window": 4096,
        },
        **FILES,
    ),
)
