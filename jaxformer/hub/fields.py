"""Fields of config.json that are fields of ours under another name: one table for both ways."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn.config import TransformerConfig

Names = Mapping[str, str]
"""Our field -> theirs: {"num_layers": "n_layer"}."""


def read_numbers(hf_config: HFConfig, names: Names) -> dict[str, Any]:
    """Our fields with the numbers in a file; None where it says null.

    Raises:
        ConfigError: A field is missing, or is no number.
    """
    given = {ours: theirs for ours, theirs in names.items() if hf_config.take(theirs) is not None}
    return dict.fromkeys(names) | {ours: hf_config.number(name) for ours, name in given.items()}


def read_flags(hf_config: HFConfig, names: Names) -> dict[str, bool]:
    """Our fields with the truth values in a file.

    Raises:
        ConfigError: A field is missing, or is neither true nor false.
    """
    flags = {ours: hf_config.take(theirs) for ours, theirs in names.items()}
    for ours, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{hf_config.path}: {names[ours]} = {value!r}: must be true or false")
    return flags


def write_fields(config: TransformerConfig, *names: Names) -> dict[str, Any]:
    """And back, with the numbers for which None stands in our configuration."""
    config = spelt_out(config)
    return {theirs: getattr(config, ours) for table in names for ours, theirs in table.items()}


def spelt_out(config: TransformerConfig) -> TransformerConfig:
    """The same model, with the numbers for which None stands."""
    numbers = {
        "num_kv_heads": config.kv_heads,
        "head_dim": config.head_width,
        "attention_scale": config.attention_scale or config.head_width**-0.5,
    }
    if config.embedding_dropout is None:
        numbers["embedding_dropout"] = config.dropout
    if isinstance(config, EncoderDecoderConfig):
        numbers["num_decoder_layers"] = config.decoder_layers
    return replace(config, **numbers)
