"""GPT-Neo: GPT-2 with windows in every other layer and logits that are not scaled."""

from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.fields import read_flags, read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.hub.windows import Windows, shortest_pattern
from jaxformer.models import DecoderConfig
from jaxformer.zoo.gpt import BLOCK, HARMLESS, HEADS, TOKENS, gpt
from jaxformer.zoo.llama import classes


def read_gpt_neo(hf_config: HFConfig) -> DecoderConfig:
    """The architecture that a config.json describes."""
    return gpt(
        **read_numbers(hf_config, _NUMBERS),
        **read_flags(hf_config, _FLAGS),
        mlp_dim=hf_config.number("intermediate_size", None) or 4 * hf_config.number("hidden_size"),
        position=Learned(max_length=hf_config.number("max_position_embeddings")),
        windows=_read_windows(hf_config),
        activation=read_activation(hf_config, "activation_function", "gelu_new"),
        norm=LayerNorm(eps=hf_config.number("layer_norm_epsilon")),
        attention_bias=False,
        attention_scale=1.0,
    )


def write_gpt_neo(config: DecoderConfig) -> dict[str, Any]:
    """And back."""
    kinds = ["global" if window is None else "local" for window in config.windows]
    windows = [window for window in config.windows if window is not None]
    return {
        **write_fields(config, _NUMBERS, _FLAGS),
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.position.max_length,
        "attention_types": [[kinds, config.num_layers // len(kinds)]],
        "attention_layers": kinds * (config.num_layers // len(kinds)),
        **({"window_size": windows[0]} if windows else {}),
        "activation_function": write_activation(config.activation),
        "layer_norm_epsilon": config.norm.eps,
    }


def _read_windows(hf_config: HFConfig) -> Windows:
    """The windows of successive layers: "attention_types" is [[kinds, how often they repeat], ...].

    Raises:
        ConfigError: It is something else, or there are not as many kinds as layers.
    """
    types = hf_config.take("attention_types")
    windows = {"global": None, "local": hf_config.number("window_size")}
    layers = hf_config.number("num_layers")
    try:
        # The least of the two, because what was written by others may say billions.
        kinds = [k for pattern, times in types for k in list(pattern) * min(times, layers + 1)]
        found = [windows[kind] for kind in kinds]
    except (KeyError, TypeError, ValueError):
        found = kinds = []
    if len(found) != layers or not found:
        raise ConfigError(
            f'{hf_config.path}: attention_types = {types!r}: must be [[["global", "local"], '
            f"repeats], ...] for {layers} layers in all"
        )
    hf_config.expect("attention_layers", kinds)
    return shortest_pattern(found)


_NUMBERS = {
    "num_layers": "num_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_heads",
    "vocab_size": "vocab_size",
    "dropout": "resid_dropout",
    "embedding_dropout": "embed_dropout",
    "attention_dropout": "attention_dropout",
}
_FLAGS = {"tie_embeddings": "tie_word_embeddings"}
_ATTENTION = attention(
    0,
    query="attn.attention.q_proj",
    key="attn.attention.k_proj",
    value="attn.attention.v_proj",
    output="attn.attention.out_proj",
)
_WEIGHT_MAP = WeightMap(
    {
        "embedding": "transformer.wte",
        "transformer.inputs.position_table": "transformer.wpe.weight",
        **block("transformer", "transformer.h.{}", BLOCK | _ATTENTION),
        "transformer.final_norm": "transformer.ln_f",
        **HEADS,
    }
)

FORMATS = (
    ModelFormat(
        model_type="gpt_neo",
        read=read_gpt_neo,
        write=write_gpt_neo,
        weight_map=lambda _: _WEIGHT_MAP,
        architectures=classes("GPTNeo"),
        tiny={
            "vocab_size": 131,
            "hidden_size": 48,
            "num_heads": 6,
            "num_layers": 2,
            "intermediate_size": 56,
            "max_position_embeddings": 20,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            **TOKENS,
        },
        prefix="transformer.",
        buffers=("*.attn.attention.bias", "*.attn.attention.masked_bias"),
        copies={"lm_head.weight": "transformer.wte.weight"},
        harmless=HARMLESS,
        defaults={
            "vocab_size": 50257,
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "max_position_embeddings": 2048,
            "attention_types": [[["global", "local"], 12]],
            "window_size": 256,
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
            "attention_dropout": 0.0,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        },
        synonyms={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    ),
)
