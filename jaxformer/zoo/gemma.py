"""Gemma: scaled embeddings and norms of 1 + scale; Gemma 2 and 3 alternate windows.

EmbeddingGemma is Gemma 3 with bidirectional attention.
"""

import warnings
from functools import partial
from typing import Any

from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.fields import (
    ACTIVATIONS,
    FULL,
    SLIDING,
    Activation,
    Computed,
    ConfigMap,
    Expect,
    NormEps,
    Number,
    resolved,
    write_windows,
)
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.rope import Rope, read_layer_ropes, write_layer_ropes
from jaxformer.hub.tasks.classes import CausalLMTask, SequenceClassificationTask, Task
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig, EncoderConfig
from jaxformer.nn import MLP, SandwichNorm, TokenEmbeddings
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.encoders import of_family
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    FIELDS,
    FILES,
    alternating_windows,
    llama,
    llama_format,
    names,
)
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "gemma-2b",
        llama(
            18,
            2048,
            8,
            16384,
            vocab_size=256000,
            num_kv_heads=1,
            head_dim=256,
            norm=RMSNorm(eps=1e-6, unit_offset=True),
            feed_forward=MLP(activation="gelu_tanh"),
            embeddings=TokenEmbeddings(scale=2048**0.5),
            tie_embeddings=True,
        ),
        "2,506,434,560",
        "Gemma Team, 2024, tables 1 and 2, https://arxiv.org/abs/2403.08295",
        "gemma.py:2b",
        note="the vocabulary padded to 256,128 tokens",
    ),
)

_NORM = partial(RMSNorm, unit_offset=True)
_FIELDS = (
    *FIELDS,
    NormEps(theirs="rms_norm_eps", make=_NORM),
    Computed(lambda hf_config: {"embeddings.scale": hf_config.number("hidden_size") ** 0.5}),
    BIASES,
)
# The first files say "gelu" but mean the tanh approximation, which some name in a second field.
_FIRST_ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu_tanh",
    **ACTIVATIONS,
    "gelu": "gelu_tanh",
    "gelu_python": "gelu_tanh",
}


_CAUSAL = Expect("use_bidirectional_attention", None, False)


def read_alternating(hf_config: HFConfig, every: int, window: int | None = None) -> dict[str, Any]:
    """Returns the fields of a model in which all layers except every `every`-th have a window."""
    # Some files repeat the activation here.
    hf_config.expect("hidden_act", None, hf_config.take("hidden_activation"))
    window = window or hf_config.number("sliding_window", None)
    return {
        "self_attention.scale": hf_config.number("query_pre_attn_scalar") ** -0.5,
        "windows": alternating_windows(hf_config, every, window),
    }


def write_alternating(config: DecoderConfig | EncoderConfig) -> dict[str, Any]:
    """Returns the fields of config.json that `read_alternating` reads."""
    return write_windows(config.windows, config.num_layers) | {
        "query_pre_attn_scalar": round(resolved(config).self_attention.scale ** -2),
    }


SECOND_FIELDS = (
    *_FIELDS,
    Activation(theirs="hidden_activation", default="gelu_pytorch_tanh"),
    Number("logits.softcap", "final_logit_softcapping", None),
)
"""The fields of config.json that Gemma 2 and 3 share."""
gemma2 = partial(llama, residual=SandwichNorm())
"""Makes a Gemma 2 from its fields, see `llama`."""
_BASES = {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}


def _third(encoder: bool, **fields: Any) -> DecoderConfig | EncoderConfig:
    config = gemma2(**fields)
    return of_family(EncoderConfig, config) if encoder else config


def _read_third(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the separate RoPE base of layers with a window, and the norms of queries and keys."""
    if softcap := hf_config.number("attn_logit_softcapping", None):
        warnings.warn(
            f"{hf_config.path}: attn_logit_softcapping = {softcap} is ignored in Gemma 3, as it is "
            "by transformers",
            stacklevel=2,
        )
    ropes = read_layer_ropes(hf_config, _BASES, scaled=(FULL,))
    every = hf_config.number("sliding_window_pattern", 6)
    # Whether tokens also see those after them (EmbeddingGemma).
    both_ways = bool(hf_config.take("use_bidirectional_attention", False))
    width = hf_config.number("sliding_window", None)
    # Half of the window is on either side of a token, which also sees itself.
    window = width // 2 + 1 if both_ways and width else width
    fields = read_alternating(hf_config, every, window)
    return fields | {
        "encoder": both_ways,
        "position": ropes[FULL],
        "window_position": ropes[SLIDING] if any(fields["windows"]) else None,
        "self_attention.query_key_norm": _NORM(eps=hf_config.number("rms_norm_eps")),
    }


def _write_third(config: DecoderConfig | EncoderConfig) -> dict[str, Any]:
    ropes = {FULL: config.position, SLIDING: config.window_position or config.position}
    both_ways = not config.causal
    written = write_alternating(config)
    if both_ways and (window := written["sliding_window"]):
        written["sliding_window"] = 2 * (window - 1)
    return {
        **written,
        "use_bidirectional_attention": both_ways,
        "attn_logit_softcapping": config.self_attention.softcap,
        **write_layer_ropes(ropes, {kind: name for kind, (name, _) in _BASES.items()}, FULL),
    }


_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
SECOND_DEFAULTS = {
    **_DEFAULTS,
    **their_sizes(26, 2304, 8, 9216),
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
"""The defaults of Gemma 2 that Gemma 3 lacks."""
_HARMLESS = ("cache_implementation", "sliding_window_size")
_SECOND_WEIGHTS = WeightMap(
    names(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
)

FORMATS = (
    llama_format(
        "gemma",
        "Gemma",
        (
            *_FIELDS,
            _CAUSAL,
            Expect("hidden_activation", None, "gelu_pytorch_tanh"),
            Rope(),
            Activation(default="gelu_pytorch_tanh", names=_FIRST_ACTIVATIONS),
        ),
        {
            **_DEFAULTS,
            **their_sizes(28, 3072, 16, 24576),
            "num_key_value_heads": 16,
        },
        without=("ForQuestionAnswering",),
        flax=FlaxFormat(norm="weight", ignored={"rope_theta": 10000.0}),
    ),
    llama_format(
        "gemma2",
        "Gemma2",
        (
            *SECOND_FIELDS,
            _CAUSAL,
            Computed(partial(read_alternating, every=2), write_alternating),
            Number("self_attention.softcap", "attn_logit_softcapping", None),
            Rope(),
        ),
        SECOND_DEFAULTS | CAPS,
        make=gemma2,
        weights=_SECOND_WEIGHTS,
        without=("ForQuestionAnswering",),
        harmless=_HARMLESS,
    ),
    ModelFormat(
        model_type="gemma3_text",
        config_map=ConfigMap(
            _third,
            (*SECOND_FIELDS, Expect("is_causal", True), Computed(_read_third, _write_third)),
        ),
        weight_map=lambda config: _SECOND_WEIGHTS,
        architectures=(
            Architecture("Gemma3ForCausalLM", CausalLMTask()),
            Architecture(
                "Gemma3TextForSequenceClassification",
                SequenceClassificationTask(pooling="last", bias=False),
            ),
            Architecture("Gemma3TextModel", Task()),
        ),
        defaults={**SECOND_DEFAULTS, "vocab_size": 262_208, "max_position_embeddings": 131_072},
        harmless=_HARMLESS,
        **FILES,
    ),
)
