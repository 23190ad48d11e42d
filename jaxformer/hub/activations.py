"""What transformers calls the activations."""

from typing import Any

from jaxformer.hub.hf_config import HFConfig

_OURS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
_THEIRS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
}


def read_activation(hf_config: HFConfig, name: str, default: Any) -> str:
    """Our name for the activation in a field of config.json."""
    return hf_config.choose(name, _OURS, default)


def write_activation(activation: str) -> str:
    """Their name for one of our activations."""
    return _THEIRS[activation]
