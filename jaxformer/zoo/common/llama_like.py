"""Shared parts of Llama and its relatives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxformer.functional.norms import LayerNorm, RMSNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import (
    FULL,
    SLIDING,
    Activation,
    Computed,
    Field,
    NormEps,
    Number,
    Value,
    Windows,
    numbers,
    read_windows,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import DecoderConfig
from jaxformer.zoo.common.basics import NUMBERS, projections, sized, their_sizes
from jaxformer.zoo.common.decoders import DecoderMap, classes


def llama(
    num_layers: int, model_dim: int, num_heads: int, mlp_dim: int, **changes: Any
) -> DecoderConfig:
    """Returns the architecture of Llama 2 in any size; `changes` are other fields."""
    fields = {
        "vocab_size": 32000,
        "position": RoPE(theta=10_000.0),
        "norm": RMSNorm(eps=1e-5),
        "tie_embeddings": False,
    }
    return sized(DecoderConfig, num_layers, model_dim, num_heads, mlp_dim, **(fields | changes))


def _read_padding(hf_config: HFConfig) -> dict[str, Any]:
    pad = hf_config.number("pad_token_id", None)
    # A negative id counts from the end of the table; Llama 1 has -1.
    negative = pad is not None and pad < 0
    return {"embeddings.padding_id": hf_config.number("vocab_size") + pad if negative else pad}


FIELDS = (
    *numbers(NUMBERS),
    Number("num_kv_heads", "num_key_value_heads", None),
    Number("head_dim", "head_dim", None),
    NormEps(theirs="rms_norm_eps", make=RMSNorm),
    Value("tie_embeddings", "tie_word_embeddings"),
    Computed(_read_padding),
    Number("self_attention.dropout", "attention_dropout", 0.0),
)
"""The fields of config.json that all relatives have."""
USUAL_FIELDS = (*FIELDS, Rope(), Activation(default="silu"))
"""The fields of relatives with the positions and the activation of Llama."""
BIASES = Value("self_attention.bias", "attention_bias", False, also=("self_attention.output_bias",))
"""The flag for the biases of attention."""
WINDOW = Computed(
    lambda hf_config: {"windows": (hf_config.number("sliding_window", None),)},
    lambda config: {"sliding_window": config.windows[0]},
)
"""All layers have the same window."""
QUERY_KEY_NORM = NormEps(
    theirs="rms_norm_eps", make=RMSNorm, also=("self_attention.query_key_norm",)
)
"""The epsilon of all norms, those of queries and keys included."""


def norm_of_each_head(theirs: str) -> Computed:
    """Returns the flag for norms of queries and keys with separate parameters in each head."""

    def read(hf_config: HFConfig) -> dict[str, Any]:
        if not hf_config.take(theirs, False):
            return {}
        norm = LayerNorm(eps=hf_config.number("layer_norm_eps"), bias=False)
        return {
            "self_attention.query_key_norm": norm,
            "self_attention.query_key_norm_over": "each_head",
        }

    return Computed(read, lambda config: {theirs: config.self_attention.query_key_norm is not None})


def used_window(hf_config: HFConfig) -> int | None:
    """Returns the window of the layers that have one; None if it is not used."""
    window = hf_config.number("sliding_window", None)
    return window if hf_config.take("use_sliding_window", False) else None


def alternating_windows(hf_config: HFConfig, every: int, window: int | None) -> Windows:
    """Returns the windows where, by default, all layers except every `every`-th have one."""
    layers = range(1, hf_config.number("num_hidden_layers") + 1)
    kinds = [SLIDING if layer % every else FULL for layer in layers]
    return read_windows(hf_config, kinds, window)


def names(*norms: str) -> dict[str, str]:
    """Returns the names of the modules; `norms` are the names of a block's norms in order."""
    parts = {
        **projections("self_attn", "o_proj"),
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
UNTIED = {"lm_head.weight": "model.embed_tokens.weight"}
"""The head that Flax's class stores separately even if it is tied."""
OLD_PREFIX = {"ForQuestionAnswering": "transformer."}
"""The prefix of the body in the question answering classes of the older systems."""
DEFAULTS = {
    "vocab_size": 32000,
    **their_sizes(32, 4096, 32, 11008),
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
FILES = {
    "prefix": "model.",
    "buffers": ("*.rotary_emb.inv_freq",),
    "copies": {"lm_head.weight": "model.embed_tokens.weight"},
}
"""Fields of the `ModelFormat` of all relatives."""
_WEIGHTS = WeightMap(NAMES)


def llama_format(
    model_type: str,
    name: str,
    fields: Sequence[Field],
    defaults: Mapping[str, Any] = DEFAULTS,
    *,
    make: Callable[..., DecoderConfig] = llama,
    weights: WeightMap = _WEIGHTS,
    without: tuple[str, ...] = (),
    prefixes: Mapping[str, str] | None = None,
    **parts: Any,
) -> ModelFormat:
    """Returns the format of Llama or a relative, whose class names begin with `name`: "Llama".

    `weights` are the names of the tensors unless `weight_map` is given; `without` and `prefixes`
    are those of `classes`, and `parts` other fields of `ModelFormat`.
    """
    own = {
        "model_type": model_type,
        "config_map": DecoderMap(make, fields),
        "weight_map": lambda config: weights,
        "architectures": classes(name, without, prefixes),
        "defaults": defaults,
    }
    return ModelFormat(**(FILES | own | parts))
