"""Inputs as a user gives them, checked before anything compiles."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.tasks import IGNORED
from jaxformer.models import (
    Classification,
    DecoderConfig,
    EncoderDecoderConfig,
    TokenClassification,
    VisionConfig,
)
from jaxformer.models.build import ModelConfig

_LABELS = (
    "end_positions", "labels", "next_sentence_label", "sentence_order_label", "start_positions",
)  # fmt: skip
_TEXT = ("attention_mask", "input_ids", "position_ids", "task_type_ids", "token_type_ids")
_DECODER = ("decoder_attention_mask", "decoder_input_ids")
_VISION = ("bool_masked_pos", "pixel_values")
_KNOWN = sorted((*_LABELS, *_TEXT, *_DECODER, *_VISION))
_KINDS = {"token_type_ids": "token_types", "task_type_ids": "task_types"}
_FLOATS = ("attention_mask", "decoder_attention_mask", "labels", "pixel_values")
"""What may be other numbers than integers."""


def checked_inputs(inputs: Mapping[str, Any], config: ModelConfig) -> dict[str, jax.Array]:
    """Arrays of int32 and float32 for a model.

    Args:
        inputs: Arrays under transformers' names.
        config: The model's.

    Raises:
        DataError: A name is not known or not of this model, an array has another shape or dtype
            than the others ask for, ids or labels are beyond their table, or rows are longer than
            the model's positions.
    """
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    for name, array in arrays.items():
        _check_name(name, config)
        _check_dtype(name, array)
        if name.endswith("input_ids"):
            _check_ids(name, array, config)
        elif name == "pixel_values":
            _check_pixels(array, config)
        elif name == "labels":
            _check_labels(array, arrays, config)
        elif name in _KINDS:
            _check_kinds(name, array, config)
        _check_shape(name, array, arrays)
    if "position_ids" in arrays and not isinstance(config, VisionConfig):
        _check_length("position_ids", int(arrays["position_ids"].max()) + 1, config)
    whole = {name: not np.issubdtype(array.dtype, np.floating) for name, array in arrays.items()}
    return {
        name: jnp.asarray(array, jnp.int32 if whole[name] else jnp.float32)
        for name, array in arrays.items()
    }


def _check_name(name: str, config: ModelConfig) -> None:
    if name not in _KNOWN:
        raise DataError(f"inputs: {name} is not known: one of {', '.join(_KNOWN)}")
    names = list(_VISION if isinstance(config, VisionConfig) else _TEXT)
    if isinstance(config, EncoderDecoderConfig):
        names += _DECODER
    if isinstance(config, DecoderConfig):
        names = [each for each in names if each not in _KINDS]
    if name not in (*names, *_LABELS):
        raise DataError(
            f"inputs: {name} is nothing that this model reads, which is {', '.join(names)}"
        )


def _check_dtype(name: str, array: np.ndarray) -> None:
    allowed = "iubf" if name in _FLOATS else "iub"
    if array.dtype.kind not in allowed:
        kind = "numbers" if name in _FLOATS else "integers"
        raise DataError(f"inputs: {name} must hold {kind}, not {array.dtype}")
    if not array.size:
        raise DataError(f"inputs: {name} is empty: its shape is {array.shape}")


def _check_ids(name: str, ids: np.ndarray, config: Any) -> None:
    if ids.ndim != 2:
        raise DataError(f"inputs: {name} must have the shape [B, T], not {ids.shape}")
    _check_range(name, ids, config.vocab_size, "the vocabulary")
    _check_length(name, ids.shape[1], config)


def _check_range(name: str, ids: np.ndarray, size: int, table: str) -> None:
    if ids.min() < 0 or ids.max() >= size:
        raise DataError(
            f"inputs: {name} holds {ids.min()} to {ids.max()}, but {table} has 0 to {size - 1}"
        )


def _check_length(name: str, length: int, config: Any) -> None:
    decodes = isinstance(config, EncoderDecoderConfig) and name.startswith(("decoder", "labels"))
    position = config.decoder_position if decodes else config.position
    try:
        position.validate_length(length)
    except ConfigError as error:
        raise DataError(f"inputs: {name} asks for {length} positions: {error}") from error


def _check_kinds(name: str, kinds: np.ndarray, config: Any) -> None:
    # A model without such kinds gives all tokens the same one.
    _check_range(name, kinds, getattr(config, "kinds", {}).get(_KINDS[name], 1), "the model")


def _check_labels(labels: np.ndarray, arrays: Mapping[str, np.ndarray], config: Any) -> None:
    head = config.heads[0] if config.heads else None
    if isinstance(head, Classification | TokenClassification):
        size = head.num_labels
    else:
        size = getattr(config, "vocab_size", 1)
    if not np.issubdtype(labels.dtype, np.floating) and size > 1:
        counted = labels[labels != IGNORED]
        _check_range("labels", counted if counted.size else np.zeros(1, int), size, "the model")
    becomes_inputs = isinstance(config, EncoderDecoderConfig) and "decoder_input_ids" not in arrays
    if becomes_inputs and labels.ndim == 2 and not isinstance(head, Classification):
        _check_length("labels", labels.shape[1], config)


def _check_shape(name: str, array: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
    """Checks an array beside the ids (or images) that it belongs to."""
    owner = "decoder_input_ids" if name.startswith("decoder") else "input_ids"
    other = arrays.get(owner, arrays.get("pixel_values"))
    if other is None or array is other:
        return
    per_token = name in (*_TEXT, "decoder_attention_mask") and name != "input_ids"
    if per_token and array.shape != other.shape:
        raise DataError(f"inputs: {name} has shape {array.shape}, its ids {other.shape}")
    if array.shape[:1] != other.shape[:1]:
        raise DataError(f"inputs: {name} has shape {array.shape}, but there are {len(other)} rows")


def _check_pixels(pixels: np.ndarray, config: Any) -> None:
    expected = (config.channels, *config.image_size)
    if pixels.ndim != 4 or pixels.shape[1:] != expected:
        sizes = ", ".join(map(str, expected))
        raise DataError(f"inputs: pixel_values has shape {pixels.shape}, not [B, {sizes}]")
