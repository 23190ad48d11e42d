"""Command R and R7B (Cohere): parallel sublayers, layer norms without biases, interleaved RoPE.

In Cohere 2 the layers with a window have RoPE, and those with full attention have no positions.
"""

from functools import partial
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.base import NoPosition
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Activation, Computed, NormEps, Number, write_windows
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.rope import Rope, read_rope, write_rope
from jaxformer.hub.weights.layouts import Same
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention, Parallel, VocabularyLogits
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.decoders import CLASSIFIERS
from jaxformer.zoo.common.llama_like import (
    BIASES,
    FIELDS,
    alternating_windows,
    llama,
    llama_format,
    names,
    norm_of_each_head,
)
from jaxformer.zoo.system import System

_PAIRS = "interleaved"
_norm = partial(LayerNorm, bias=False)


def _cohere(*sizes: int, theta: float, **changes: Any) -> DecoderConfig:
    """Command R in any size."""
    fields = {
        "vocab_size": 256_000,
        "position": RoPE(theta=theta, layout=_PAIRS),
        "norm": _norm(eps=1e-5),
        "residual": Parallel(),
        "tie_embeddings": True,
    }
    return llama(*sizes, **(fields | changes))


_CARD = "Cohere, 2024, the model card"
_R7B = {"position": NoPosition(), "window_position": RoPE(theta=50_000.0, layout=_PAIRS)}

SYSTEMS = (
    System(
        "command-r-35b",
        _cohere(40, 8192, 64, 22528, theta=8_000_000.0, logits=VocabularyLogits(scale=0.0625)),
        "35B",
        _CARD,
    ),
    System(
        "command-r-plus-104b",
        _cohere(
            64,
            12288,
            96,
            33792,
            num_kv_heads=8,
            theta=75_000_000.0,
            self_attention=DotProductAttention(
                query_key_norm=_norm(eps=1e-5), query_key_norm_over="each_head"
            ),
            logits=VocabularyLogits(scale=0.8333333333333334),
        ),
        "104B",
        _CARD,
    ),
    System(
        "command-r7b",
        _cohere(
            32,
            4096,
            32,
            14336,
            num_kv_heads=8,
            theta=50_000.0,
            windows=(4096, 4096, 4096, None),
            logits=VocabularyLogits(scale=0.25),
            **_R7B,
        ),
        "7B",
        _CARD,
        note="without the embedding table",
    ),
)


def _read_layers(hf_config: HFConfig) -> dict[str, Any]:
    """All layers except every fourth have a window, and only these have RoPE."""
    every = hf_config.number("sliding_window_pattern", 4)
    windows = alternating_windows(hf_config, every, hf_config.number("sliding_window", None))
    rope = read_rope(hf_config, layout=_PAIRS)
    return {
        "windows": windows,
        "position": NoPosition(),
        "window_position": rope if any(windows) else None,
    }


def _write_layers(config: DecoderConfig) -> dict[str, Any]:
    rope = config.window_position
    return write_windows(config.windows, config.num_layers) | (write_rope(rope) if rope else {})


_FIELDS = (
    *(each for each in FIELDS if not isinstance(each, NormEps)),
    NormEps(make=_norm),
    Number("logits.scale", "logit_scale", 0.0625),
    Activation(default="silu"),
    BIASES,
)
_DEFAULTS = {
    "vocab_size": 256_000,
    **their_sizes(40, 8192, 64, 22528),
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_format = partial(
    llama_format,
    make=partial(llama, residual=Parallel()),
    weights=WeightMap(
        names("input_layernorm"),
        layouts={f"*.{part}_norm.scale": Same() for part in ("query", "key")},
    ),
    without=CLASSIFIERS,
)

FORMATS = (
    _format(
        "cohere",
        "Cohere",
        (*_FIELDS, Rope(theta=500_000.0, layout=_PAIRS), norm_of_each_head("use_qk_norm")),
        _DEFAULTS,
    ),
    _format(
        "cohere2",
        "Cohere2",
        (*_FIELDS, Computed(_read_layers, _write_layers)),
        _DEFAULTS | {"sliding_window": 4096},
    ),
)
