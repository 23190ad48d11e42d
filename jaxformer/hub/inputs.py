"""Checks a user's inputs before anything is compiled."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError, DataError, did_you_mean
from jaxformer.hub.families import FAMILIES, PATCHES, SEGMENTS, family_of
from jaxformer.hub.sound_inputs import check_sounds, check_spectrograms
from jaxformer.hub.tasks.classes import IGNORED
from jaxformer.models.model import ModelConfig

_LABELS = (
    "end_positions", "labels", "next_sentence_label", "sentence_order_label", "start_positions",
)  # fmt: skip
_PER_TOKEN = ("attention_mask", "decoder_attention_mask", "position_ids", *SEGMENTS)
_KNOWN = sorted({*_LABELS, *chain.from_iterable(family.inputs for family in FAMILIES.values())})
_MASKS = (
    "attention_mask", "bool_masked_pos", "decoder_attention_mask", "mask_time_indices",
    "pixel_attention_mask",
)  # fmt: skip
_SIGNALS = ("input_features", "input_values", "pixel_values")
"""The inputs of models that do not read text."""
_MOST = np.iinfo(np.int32).max

_INTEGERS = (jnp.integer,), "integers"
_INTEGERS_OR_BOOL = (jnp.integer, jnp.bool_), "integers"
_FLOATS = (jnp.floating,), "floats"
_NUMBERS = (jnp.integer, jnp.bool_, jnp.floating), "numbers"
_ALLOWED_DTYPES = {
    **dict.fromkeys(("input_features", "input_values", "noise", "pixel_values"), _FLOATS),
    **dict.fromkeys(("input_ids", "decoder_input_ids", "position_ids"), _INTEGERS),
    **dict.fromkeys(("labels", *_MASKS), _NUMBERS),
}
"""Input -> the allowed dtypes; other inputs may be integers or bool."""


def padded_prompts(
    rows: Sequence[Sequence[int]], padding: int, left: bool, width: int | None = None
) -> dict[str, np.ndarray]:
    """Pads rows of tokens on one side, as "input_ids" and "attention_mask" int64 `[B, T]`.

    The default width is that of the longest row.
    """
    for number, row in enumerate(rows):
        if not len(row):
            raise DataError(f"prompt {number} is empty: at least one token is required")
    width = width or max(map(len, rows))
    ids = np.full((len(rows), width), padding, np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        real = slice(width - len(row), width) if left else slice(len(row))
        ids[number, real], mask[number, real] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def checked_inputs(inputs: Mapping[str, Any], config: ModelConfig) -> dict[str, jax.Array]:
    """Returns the inputs of a model as int32 and float32 arrays, after checking them."""
    if not isinstance(inputs, Mapping):
        raise DataError(
            f"inputs is of type {type(inputs).__name__}: must be a mapping such as "
            '{"input_ids": ids}'
        )
    # The ids first: the shapes of the others are compared with theirs.
    ids_first = sorted(inputs.items(), key=lambda item: not str(item[0]).endswith("input_ids"))
    arrays = {name: _as_array(name, value) for name, value in ids_first}
    for name, array in arrays.items():
        _check_name(name, config)
        if name == "return_loss":
            continue
        if isinstance(array, jax.core.Tracer):
            _check_shape(name, array, arrays)
            continue  # Inside `jit`, `vmap` or `grad`, arrays have no values.
        _check_dtype(name, array)
        if name.endswith("input_ids"):
            _check_ids(name, array, config)
        elif name == "pixel_values":
            _check_pixels(arrays, config)
        elif name == "input_features":
            check_spectrograms(array, _reader(config, "spectrograms"))
        elif name == "input_values":
            check_sounds(arrays, _reader(config, "waveforms"))
        elif name == "position_ids":
            _check_positions(array, config)
        elif name in _MASKS:
            _check_mask(name, array)
        if name in ("bool_masked_pos", "noise"):
            _check_patches(name, array, arrays, config)
        elif name in SEGMENTS:
            _check_segments(name, array, config)
        _check_shape(name, array, arrays)
        if name in _LABELS:
            _check_labels(name, array, arrays, config)
    if not np.asarray(inputs.get("return_loss", True)):
        del arrays["return_loss"]
    return {
        name: jnp.asarray(array, jnp.float32 if _is_floating(array) else jnp.int32)
        for name, array in arrays.items()
    }


def _as_array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, jax.core.Tracer):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"inputs: {name} is not an array: must be one, or lists of one length ({error})"
        ) from error


def _is_floating(array: np.ndarray) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def _check_name(name: str, config: ModelConfig) -> None:
    names = family_of(config).names_of_inputs(config)
    if name not in _KNOWN:
        raise DataError(
            f"inputs: {name} is not known: this model has {', '.join(names)} and labels"
            f"{did_you_mean(name, (*names, *_LABELS))}"
        )
    if name not in (*names, *_LABELS):
        raise DataError(
            f"inputs: {name} is not an input of this model, which has {', '.join(names)}"
        )


def _check_dtype(name: str, array: np.ndarray) -> None:
    kinds, word = _ALLOWED_DTYPES.get(name, _INTEGERS_OR_BOOL)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):
        raise DataError(f"inputs: {name} must hold {word}, not {array.dtype}")
    if not array.size:
        raise DataError(f"inputs: {name} is empty: its shape is {array.shape}")
    if not array.ndim:
        raise DataError(f"inputs: {name} is a number: must be an array with a row for each text")
    if _is_floating(array):
        if name not in _MASKS and not (np.abs(array) <= np.finfo(np.float32).max).all():
            raise DataError(f"inputs: {name} holds NaN or numbers that are infinite in float32")
    elif array.dtype != bool and not -_MOST - 1 <= int(array.min()) <= int(array.max()) <= _MOST:
        raise DataError(
            f"inputs: {name} holds {array.min()} to {array.max()}, which does not fit into int32"
        )


def _check_ids(name: str, ids: np.ndarray, config: Any) -> None:
    chooses = any(head.unit == "choice" for head in config.heads)
    axes = ("B", "C", "T") if chooses else ("B", "T")
    if ids.ndim != len(axes):
        raise DataError(f"inputs: {name} must have the shape [{', '.join(axes)}], not {ids.shape}")
    _check_range(name, ids, family_of(config).vocab_size(config, name), "the vocabulary")
    _check_length(name, ids.shape[-1], config)


def _check_range(name: str, ids: np.ndarray, size: int, table: str) -> None:
    if ids.min() < 0 or ids.max() >= size:
        raise DataError(
            f"inputs: {name} holds {ids.min()} to {ids.max()}, but {table} has 0 to {size - 1}"
        )


def _check_positions(positions: np.ndarray, config: Any) -> None:
    limit = config.position.max_length
    if limit is not None and positions.min() < 0:
        raise DataError(
            f"inputs: position_ids holds {positions.min()} to {positions.max()}, but the model has "
            f"the positions 0 to {limit - 1}"
        )
    _check_length("position_ids", int(positions.max()) + 1, config)


def _check_mask(name: str, mask: np.ndarray) -> None:
    if not ((mask == 0) | (mask == 1)).all():
        raise DataError(
            f"inputs: {name} holds {mask.min()} to {mask.max()}: must hold 0 and 1, or bool; give "
            "mask == 0 for a mask of 0 and -inf"
        )


def _check_length(name: str, length: int, config: Any) -> None:
    try:
        family_of(config).position(config, name).validate_length(length)
    except ConfigError as error:
        raise DataError(f"inputs: {name} requires {length} positions: {error}") from error


def _check_segments(name: str, segments: np.ndarray, config: Any) -> None:
    # A model without segment embeddings accepts only segment 0.
    sizes = getattr(config.parts.get("encoder", config), "type_sizes", {})
    _check_range(name, segments, sizes.get(SEGMENTS[name], 1), "the model")


def _check_labels(
    name: str, labels: np.ndarray, arrays: Mapping[str, np.ndarray], config: Any
) -> None:
    head = config.heads[0] if config.heads else None
    if name.endswith("_label"):
        _check_range(name, labels, 2, "the model")
        _check_rows(name, labels)
    elif name.endswith("_positions"):
        _check_rows(name, labels)
        if labels.min() < 0:
            raise DataError(
                f"inputs: {name} holds {labels.min()}: must be positions of tokens, 0 or more"
            )
    elif head is None:
        _check_counted(labels, getattr(config, "vocab_size", 1))  # not read by any head
    elif head.unit == "choice":
        _check_rows(name, labels)
        if "input_ids" in arrays:
            _check_counted(labels, arrays["input_ids"].shape[1])
    elif head.unit == "token" and (size := head.choices(config)):
        _check_token_labels(labels, arrays, config, size)
    elif head.unit == "patch" and (size := head.choices(config)):
        _check_visual_tokens(labels, arrays, size)
    elif head.unit == "transcript":
        _check_transcripts(labels, head.choices(config))
    elif head.num_labels is not None:
        _check_classes(labels, head.num_labels)


def _check_visual_tokens(labels: np.ndarray, arrays: Mapping[str, np.ndarray], size: int) -> None:
    """Checks the labels of masked patches, concatenated over all images."""
    hidden = arrays.get("bool_masked_pos")
    if hidden is None:
        raise DataError("inputs: labels belong to masked patches: give bool_masked_pos too")
    if labels.shape != (count := int((hidden > 0).sum()),):
        raise DataError(
            f"inputs: labels has shape {labels.shape}: must be [{count}], one for each patch that "
            "bool_masked_pos masks, row by row"
        )
    _check_counted(labels, size)


def _check_transcripts(labels: np.ndarray, size: int) -> None:
    if _is_floating(labels) or labels.dtype == bool:
        raise DataError(f"inputs: labels must hold integers, not {labels.dtype}")
    if labels.ndim != 2:
        raise DataError(f"inputs: labels must have the shape [B, U], not {labels.shape}")
    _check_counted(labels, size)


def _check_rows(name: str, labels: np.ndarray) -> None:
    if labels.ndim != 1:
        raise DataError(f"inputs: {name} must have the shape [B], not {labels.shape}")


def _check_classes(labels: np.ndarray, size: int) -> None:
    """Checks the label of each row: a class, a number, or a float for each of several labels."""
    one_each = labels.ndim == 1 or labels.shape[1:] == (1,)
    whole = not _is_floating(labels)
    if labels.shape[1:] != (size,) and not (one_each and (whole or size == 1)):
        wanted = "[B]" if whole or size == 1 else f"[B, {size}], a float for each label"
        raise DataError(f"inputs: labels must have the shape {wanted}, not {labels.shape}")
    if whole and size > 1:
        _check_counted(labels, size)


def _check_token_labels(
    labels: np.ndarray, arrays: Mapping[str, np.ndarray], config: Any, size: int
) -> None:
    if (_is_floating(labels) and size > 1) or (labels.dtype == bool and size > 2):
        raise DataError(f"inputs: labels must hold integers, not {labels.dtype}")
    _check_counted(labels, max(size, 2))
    labelled = family_of(config).labelled
    ids = arrays.get(labelled)
    if ids is not None and labels.shape != ids.shape:
        raise DataError(f"inputs: labels has shape {labels.shape}, its ids {ids.shape}")
    if labels.ndim != 2:
        raise DataError(f"inputs: labels must have the shape [B, T], not {labels.shape}")
    if labelled != "input_ids" and ids is None:
        _check_length("labels", labels.shape[1], config)


def _check_counted(labels: np.ndarray, size: int) -> None:
    counted = labels[labels != IGNORED]
    if counted.size and size > 1:
        _check_range("labels", counted, size, "the model")


def _check_shape(name: str, array: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
    """Checks that an array has the shape, or the number of rows, of its ids or images."""
    if name in PATCHES:
        return  # A dual encoder may read more images than texts.
    owner = "decoder_input_ids" if name.startswith("decoder") else "input_ids"
    other = next((arrays[each] for each in (owner, *_SIGNALS) if each in arrays), None)
    if other is None or array is other:
        return
    per_token = name in _PER_TOKEN and other is not arrays.get("input_features")
    if per_token and array.shape != other.shape:
        raise DataError(f"inputs: {name} has shape {array.shape}, its ids {other.shape}")
    if name == "labels" and "bool_masked_pos" in arrays:
        return  # one for each masked patch
    if array.shape[:1] != other.shape[:1]:
        raise DataError(f"inputs: {name} has shape {array.shape}, but there are {len(other)} rows")


def _reader(config: ModelConfig, source: str) -> Any:
    """Returns the model, or its part that reads an input."""
    return next((x for x in config.parts.values() if source in x.required), config)


def _check_pixels(arrays: Mapping[str, np.ndarray], config: Any) -> None:
    config = _reader(config, "images")
    pixels = arrays["pixel_values"]
    if config.position.any_grid:
        _check_patches_of_images(arrays, config)
        return
    channels, (height, width) = config.channels, config.image_size
    wanted = f"must be [B, {channels}, {height}, {width}], channels before rows and columns"
    given = f"inputs: pixel_values has shape {pixels.shape}"
    if pixels.ndim != 4:
        raise DataError(f"{given}: {wanted}")
    if pixels.shape[1] != channels:
        last = pixels.shape[3] == channels
        hint = (
            "; transpose it with (0, 3, 1, 2)" if last else f"; the model has {channels} channels"
        )
        raise DataError(f"{given}, which has {pixels.shape[1]} channels: {wanted}{hint}")
    size = pixels.shape[2:]
    if getattr(config, "interpolate_positions", False):
        patch = config.patch_size
        if size[0] < patch[0] or size[1] < patch[1]:
            raise DataError(
                f"{given}: must have {patch[0]} rows and {patch[1]} columns, at least one patch"
            )
    elif size != (height, width):
        raise DataError(
            f"{given}: {wanted}; for images of another size load the model with "
            "interpolate_positions=True"
        )


def _check_patches_of_images(arrays: Mapping[str, np.ndarray], config: Any) -> None:
    """Checks images that are cut into patches, their grids, and their mask."""
    pixels = arrays["pixel_values"]
    size = math.prod(config.patch_size) * config.channels
    if pixels.ndim != 3 or pixels.shape[2] != size:
        raise DataError(
            f"inputs: pixel_values has shape {pixels.shape}: must be [B, patches, {size}], the "
            "pixels of each patch by row, column and colour, as transformers' image processor "
            "makes them"
        )
    wanted = {"pixel_attention_mask": pixels.shape[:2], "spatial_shapes": (len(pixels), 2)}
    for name, shape in wanted.items():
        if name in arrays and arrays[name].shape != shape:
            raise DataError(f"inputs: {name} has shape {arrays[name].shape}: must be {shape}")
    grids = arrays.get("spatial_shapes")
    if grids is None or isinstance(grids, jax.core.Tracer):
        return
    counts = np.prod(grids, axis=1)
    if grids.min() < 1 or counts.max() > pixels.shape[1]:
        row = int(np.argmax((grids.min(axis=1) < 1) | (counts > pixels.shape[1])))
        raise DataError(
            f"inputs: spatial_shapes holds {tuple(grids[row].tolist())}: must be the rows and "
            f"columns of the patches of an image, {pixels.shape[1]} patches at most"
        )


def _check_patches(
    name: str, hidden: np.ndarray, arrays: Mapping[str, np.ndarray], config: Any
) -> None:
    pixels = arrays.get("pixel_values")
    if pixels is None or np.ndim(pixels) != 4:
        return  # reported separately
    patch_size = _reader(config, "images").patch_size
    sizes = zip(pixels.shape[2:], patch_size, strict=True)
    expected = (len(pixels), math.prod(count // size for count, size in sizes))
    if hidden.shape != expected:
        raise DataError(
            f"inputs: {name} has shape {hidden.shape}: must be {expected}, one for each "
            "patch of each image"
        )
