"""SmolLM 3: Llama in which every fourth layer has no positions."""

from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import (
    FULL,
    SLIDING,
    Activation,
    Computed,
    Value,
    layer_windows,
    shortest_pattern,
    write_windows,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.rope import Rope
from jaxformer.models import DecoderConfig
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    FIELDS,
    OLD_PREFIX,
    llama,
    llama_format,
    used_window,
)
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "smollm3-3b",
        llama(
            36,
            2048,
            16,
            11008,
            vocab_size=128256,
            num_kv_heads=4,
            position=RoPE(theta=5_000_000.0),
            windows=(None,) * 4,
            rope_layers=(True, True, True, False),
            norm=RMSNorm(eps=1e-6),
            tie_embeddings=True,
        ),
        "3B",
        "Hugging Face, 2025, the model card of SmolLM3-3B",
    ),
)


def _read_layers(hf_config: HFConfig) -> dict[str, Any]:
    """Reads which layers have RoPE, and which have a window: by default, those without RoPE may."""
    count, every = (hf_config.number(n) for n in ("num_hidden_layers", "no_rope_layer_interval"))
    rotate = hf_config.take("no_rope_layers", None)
    if rotate is None:
        rotate = [int(layer % every != 0) for layer in range(1, count + 1)]
    if not isinstance(rotate, list) or len(rotate) < count or not set(rotate) <= {0, 1}:
        raise ConfigError(
            f"{hf_config.path}: no_rope_layers = {rotate!r}: must be a list of {count} numbers, "
            "each 1 (the layer has RoPE) or 0 (it has none)"
        )
    window = used_window(hf_config)
    usual = [FULL if window is None or rotates else SLIDING for rotates in rotate[:count]]
    windows = layer_windows(hf_config, usual, window)
    pattern = shortest_pattern([*zip(windows, map(bool, rotate), strict=False)])
    windows, rotate = zip(*pattern, strict=True)
    return {"windows": windows, "rope_layers": None if all(rotate) else rotate}


def _write_layers(config: DecoderConfig) -> dict[str, Any]:
    rotate = config.rope_layers or (True,)
    return {
        **write_windows(config.windows, config.num_layers),
        "use_sliding_window": any(config.windows),
        "no_rope_layers": [*map(int, rotate)] * (config.num_layers // len(rotate)),
    }


FORMATS = (
    llama_format(
        "smollm3",
        "SmolLM3",
        (
            *FIELDS,
            Rope(theta=2_000_000.0),
            Activation(default="silu"),
            BIASES,
            Value("feed_forward.bias", "mlp_bias", False),
            Computed(_read_layers, _write_layers),
        ),
        {
            **DEFAULTS,
            "vocab_size": 128256,
            **their_sizes(36, 2048, 16, 11008),
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "no_rope_layer_interval": 4,
            "pad_token_id": 128004,
            "tie_word_embeddings": True,
        },
        prefixes=OLD_PREFIX,
    ),
)
