"""Llama 1 to 3.2, and Mistral, which adds sliding windows."""

from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positions.rope_scaling import Llama3Scaling
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Value
from jaxformer.hub.flax_format import Difference, FlaxFormat
from jaxformer.models import DecoderConfig
from jaxformer.zoo.common.llama_like import (
    BIASES,
    DEFAULTS,
    OLD_PREFIX,
    UNTIED,
    USUAL_FIELDS,
    WINDOW,
    llama,
    llama_format,
)
from jaxformer.zoo.system import System

_ONE = {"norm": RMSNorm(eps=1e-6)}
_THREE = {"vocab_size": 128256, "num_kv_heads": 8, "position": RoPE(theta=500_000.0)}
_STRETCHED = RoPE(theta=500_000.0, scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192))
_SMALL = _THREE | {"position": _STRETCHED, "tie_embeddings": True}

_LLAMA1 = "Touvron et al., 2023, table 2, https://arxiv.org/abs/2302.13971"
_LLAMA2 = "Touvron et al., 2023, https://arxiv.org/abs/2307.09288"
_LLAMA3 = "Llama Team, 2024, table 3, https://arxiv.org/abs/2407.21783"
_LLAMA32 = "Meta, 2024, the model card of Llama 3.2"


def _llama(name: str, config: DecoderConfig, published: str, source: str) -> System:
    """A size that configs/llama.py trains under its whole name."""
    return System(name, config, published, source, f"llama.py:{name}")


SYSTEMS = (
    _llama("llama-7b", llama(32, 4096, 32, 11008, **_ONE), "6.7B", _LLAMA1),
    _llama("llama-13b", llama(40, 5120, 40, 13824, **_ONE), "13.0B", _LLAMA1),
    _llama("llama-33b", llama(60, 6656, 52, 17920, **_ONE), "32.5B", _LLAMA1),
    _llama("llama-65b", llama(80, 8192, 64, 22016, **_ONE), "65.2B", _LLAMA1),
    _llama("llama2-7b", llama(32, 4096, 32, 11008), "7B", _LLAMA2),
    _llama("llama2-13b", llama(40, 5120, 40, 13824), "13B", _LLAMA2),
    _llama("llama2-70b", llama(80, 8192, 64, 28672, num_kv_heads=8), "70B", _LLAMA2),
    _llama("llama3-8b", llama(32, 4096, 32, 14336, **_THREE), "8B", _LLAMA3),
    _llama("llama3-70b", llama(80, 8192, 64, 28672, **_THREE), "70B", _LLAMA3),
    _llama("llama3-405b", llama(126, 16384, 128, 53248, **_THREE), "405B", _LLAMA3),
    _llama("llama3.2-1b", llama(16, 2048, 32, 8192, **_SMALL), "1.23B", _LLAMA32),
    _llama("llama3.2-3b", llama(28, 3072, 24, 8192, **_SMALL), "3.21B", _LLAMA32),
    System(
        "mistral-7b",
        llama(32, 4096, 32, 14336, num_kv_heads=8, windows=(4096,)),
        "7.3B",
        "Jiang et al., 2023, table 1, https://arxiv.org/abs/2310.06825; the announcement",
        "mistral.py:7b",
    ),
)

FORMATS = (
    llama_format(
        "llama",
        "Llama",
        (*USUAL_FIELDS, Value("feed_forward.bias", "mlp_bias", False), BIASES),
        prefixes=OLD_PREFIX,
        flax=FlaxFormat(
            norm="weight",
            untied=UNTIED,
            ignored={"rope_theta": 10000.0, "rope_scaling": None, "mlp_bias": False},
        ),
    ),
    llama_format(
        "mistral",
        "Mistral",
        (*USUAL_FIELDS, WINDOW),
        {
            **DEFAULTS,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 4096 * 32,
            "sliding_window": 4096,
        },
        flax=FlaxFormat(
            norm="weight",
            untied=UNTIED,
            ignored={"rope_theta": 10000.0},
            differences=(
                Difference(
                    "sliding_window",
                    "it lets a token see itself and that many before it",
                    as_flax=lambda window: (window or 0) + 1,
                ),
            ),
        ),
    ),
)
