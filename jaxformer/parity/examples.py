"""Made-up inputs that reveal mistakes: odd sizes, padding on either side, T != S."""

from functools import singledispatch
from typing import Any, Literal, get_args

import numpy as np

from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    VisionConfig,
)

Padding = Literal["none", "right", "left"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)


def example_inputs(
    checkpoint: HFCheckpoint,
    padding: Padding = "none",
    rows: int = 3,
    length: int = 11,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Inputs with labels for a model, under transformers' names.

    Args:
        checkpoint: The model.
        padding: On which side of the shorter rows there is padding.
        rows: B.
        length: T; a decoder that reads an encoder gets two tokens less.
        seed: Of the numbers.
    """
    rng = np.random.default_rng(seed)
    inputs = _inputs(checkpoint.config, checkpoint, padding, (rows, length), rng)
    return inputs | checkpoint.architecture.task.example_labels(rng, inputs, checkpoint.hf_config)


@singledispatch
def _inputs(
    config: Any, checkpoint: HFCheckpoint, padding: Padding, shape, rng
) -> dict[str, np.ndarray]:
    raise NotImplementedError(type(config))


@_inputs.register(DecoderConfig)
def _text(config, checkpoint, padding, shape, rng):
    return _ids(config, checkpoint, padding, shape, rng, "")


@_inputs.register
def _encoder(config: EncoderConfig, checkpoint, padding, shape, rng):
    inputs = _ids(config, checkpoint, padding, shape, rng, "")
    for ours, theirs in (("token_types", "token_type_ids"), ("task_types", "task_type_ids")):
        if rows := config.type_sizes.get(ours):
            inputs[theirs] = rng.integers(rows, size=shape)
    return inputs


@_inputs.register
def _encoder_decoder(config: EncoderDecoderConfig, checkpoint, padding, shape, rng):
    inputs = _ids(config, checkpoint, padding, shape, rng, "")
    if checkpoint.architecture.task.repeats_inputs:
        return inputs
    return inputs | _ids(config, checkpoint, padding, (shape[0], shape[1] - 2), rng, "decoder_")


@_inputs.register
def _vision(config: VisionConfig, checkpoint, padding, shape, rng):
    size = (shape[0], config.channels, *config.image_size)
    return {"pixel_values": rng.standard_normal(size).astype(np.float32)}


def _ids(config, checkpoint: HFCheckpoint, padding: Padding, shape, rng, prefix: str):
    """Ids and mask of one side; no real token has the padding's id."""
    rows, length = shape
    pad = checkpoint.hf_config.values.get("pad_token_id")
    ids = rng.integers(config.vocab_size, size=shape)
    if pad is not None:
        ids = np.where(ids == pad, (pad + 1) % config.vocab_size, ids)
    if padding == "none":
        return {f"{prefix}input_ids": ids}
    sizes = np.maximum(length - np.arange(rows) * (length // rows), 1)
    places = np.arange(length)
    real = places < sizes[:, None] if padding == "right" else places >= (length - sizes)[:, None]
    if pad is not None:
        ids = np.where(real, ids, pad)
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": real.astype(np.int64)}
