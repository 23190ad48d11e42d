"""Qwen 2 and 3: Llama with biases of query, key and value, and with norms of query and key."""

from functools import partial
from typing import Any

from jaxformer.hub.fields import FULL, SLIDING, Computed, read_windows, write_windows
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import DecoderConfig
from jaxformer.nn import DotProductAttention
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    OLD_PREFIX,
    QUERY_KEY_NORM,
    USUAL_FIELDS,
    llama,
    llama_format,
    used_window,
)


def _read_windows(hf_config: HFConfig) -> dict[str, Any]:
    """The layers from `max_window_layers` on may have a window."""
    count = hf_config.number("num_hidden_layers")
    first = hf_config.number("max_window_layers")
    window = used_window(hf_config)
    kinds = [FULL if window is None or layer < first else SLIDING for layer in range(count)]
    return {"windows": read_windows(hf_config, kinds, window)}


def _write_windows(config: DecoderConfig) -> dict[str, Any]:
    kinds = write_windows(config.windows, config.num_layers)
    return kinds | {
        "use_sliding_window": any(config.windows),
        "max_window_layers": [*kinds["layer_types"], SLIDING].index(SLIDING),
    }


_FIELDS = (
    *USUAL_FIELDS,
    Computed(_read_windows, _write_windows),
)
_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FORMATS = (
    llama_format(
        "qwen2",
        "Qwen2",
        _FIELDS,
        _DEFAULTS,
        make=partial(llama, self_attention=DotProductAttention(bias=True)),
        prefixes=OLD_PREFIX,
    ),
    llama_format(
        "qwen3",
        "Qwen3",
        (*_FIELDS, QUERY_KEY_NORM, BIASES),
        _DEFAULTS | {"head_dim": 128},
        prefixes=OLD_PREFIX,
    ),
)
