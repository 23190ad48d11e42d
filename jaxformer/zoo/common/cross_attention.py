"""Decoders whose files keep cross-attention although there is no encoder."""

from typing import Any

from jaxformer.hub.fields import Computed, Expect
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models.model import ModelConfig
from jaxformer.nn.block import UnusedCrossAttention

_FIELD = "add_cross_attention"
NO_CROSS_ATTENTION = Expect(_FIELD, False)
"""The field of systems without cross-attention."""


def keeps_cross_attention(config: ModelConfig) -> bool:
    """Returns whether a decoder has cross-attention without an encoder to read."""
    return isinstance(getattr(config, "block", None), UnusedCrossAttention)


def _read(hf_config: HFConfig) -> dict[str, Any]:
    return {"block": UnusedCrossAttention()} if hf_config.take(_FIELD, False) else {}


KEPT_CROSS_ATTENTION = Computed(
    _read, lambda config: {_FIELD: True} if keeps_cross_attention(config) else {}
)
"""The field of systems whose weight maps name cross-attention."""
