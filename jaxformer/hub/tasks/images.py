"""The heads, outputs and losses of image classes: masked patches, and DeiT's two classifiers."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.errors import DataError
from jaxformer.functional.arrays import spec_of
from jaxformer.hub.tasks.classes import Task, num_labels, token_loss
from jaxformer.models import Classification, MaskedAutoencoder, MaskedPixels, VisualTokens
from jaxformer.models.heads.base import DEFAULT_OPTIONS

_EPSILON = 1e-5


@dataclass(frozen=True)
class DistilledClassificationTask(Task):
    """The average of a classifier of the class token and one of the distillation token (DeiT)."""

    def heads(self, hf_config):
        labels = num_labels(hf_config)
        return (
            Classification(num_labels=labels),
            Classification(num_labels=labels, label="distillation", pooling="second"),
        )

    def outputs(self, model, states, inputs, hf_config):
        own = model.heads["label"].scores(states)
        taught = model.heads["distillation"].scores(states)
        return {"logits": (own + taught) / 2, "cls_logits": own, "distillation_logits": taught}


@dataclass(frozen=True)
class MaskedPixelsTask(Task):
    """Prediction of the pixels of masked patches (SimMIM)."""

    head_types = (MaskedPixels,)
    FIELDS: ClassVar = {"stride": "encoder_stride"}

    def outputs(self, model, states, inputs, hf_config):
        head = model.heads["masked_pixels"]
        images = inputs["pixel_values"]
        rows, columns = (
            count // size for count, size in zip(images.shape[2:], head.patch_size, strict=True)
        )
        image = _joined(head.scores(states), rows, columns)
        outputs = {"reconstruction": image}
        masked = inputs.get("bool_masked_pos")
        if masked is None:
            return outputs
        if (head.stride, head.stride) != head.patch_size:
            raise DataError(
                f"inputs: bool_masked_pos: encoder_stride = {head.stride} must be the size of the "
                f"patches, {head.patch_size}, so that masked pixels can be compared"
            )
        batch = {"masked": masked > 0, "images": jnp.transpose(images, (0, 2, 3, 1))}
        sums = head.loss(states, batch, DEFAULT_OPTIONS, None)
        return outputs | {"loss": sums.loss / (sums.weight + _EPSILON / head.stride**2)}


@dataclass(frozen=True)
class MaskedAutoencoderTask(Task):
    """Prediction of the pixels of hidden patches by a decoder (MAE)."""

    head_types = (MaskedAutoencoder,)
    FIELDS: ClassVar = {
        "num_layers": "decoder_num_hidden_layers",
        "model_dim": "decoder_hidden_size",
        "num_heads": "decoder_num_attention_heads",
        "mlp_dim": "decoder_intermediate_size",
        "normalize": "norm_pix_loss",
    }

    def teaches(self, kind):
        """Whether data mask patches, for any head that restores them."""
        return kind in (MaskedPixels.kind(), MaskedAutoencoder.kind())

    def outputs(self, model, states, inputs, hf_config):
        head = model.heads["reconstruction"]
        images = inputs["pixel_values"]
        scores = head.scores(states)
        outputs = {"logits": scores.reshape(*scores.shape[:2], -1)}
        if states.places is None:
            return outputs  # no patch is masked
        errors = head.errors(scores, jnp.transpose(images, (0, 2, 3, 1)))
        numbers = jnp.arange(errors.shape[1])[None, None, :]
        hidden = ~jnp.any(states.places[:, :, None] == numbers, axis=1)
        return outputs | {"loss": jnp.sum(errors * hidden) / jnp.sum(hidden)}


@dataclass(frozen=True)
class VisualTokensTask(Task):
    """Prediction of an image tokenizer's tokens at masked patches (BEiT)."""

    def heads(self, hf_config):
        return (VisualTokens(num_tokens=hf_config.number("vocab_size", 8192)),)

    def outputs(self, model, states, inputs, hf_config):
        scores = model.heads["visual_tokens"].scores(states)
        outputs = {"logits": scores}
        if "labels" not in inputs:
            return outputs
        if "bool_masked_pos" not in inputs:
            raise DataError("inputs: labels belong to masked patches: give bool_masked_pos too")
        labels = inputs["labels"]
        # One label for each masked patch, row by row.
        hidden = (inputs["bool_masked_pos"] > 0).reshape(-1)
        (indices,) = jnp.nonzero(hidden, size=labels.shape[0])
        return outputs | {"loss": token_loss(scores.reshape(-1, scores.shape[-1])[indices], labels)}


def _joined(patches: jax.Array, rows: int, columns: int) -> jax.Array:
    """Joins patches `[B, rows columns, P, Q, C]` to images `[B, C, rows P, columns Q]`."""
    batch, _, height, width, channels = patches.shape
    spec = spec_of(patches)
    by_row = None if spec is None else PartitionSpec(spec[0])
    grid = jnp.reshape(
        patches, (batch, rows, columns, height, width, channels), out_sharding=by_row
    )
    shape = (batch, channels, rows * height, columns * width)
    return grid.transpose(0, 5, 1, 3, 2, 4).reshape(shape, out_sharding=by_row)
