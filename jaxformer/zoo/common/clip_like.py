"""Shared parts of the towers of CLIP and SigLIP."""

from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import (
    Activation,
    Computed,
    Field,
    LearnedPositions,
    NormEps,
    Number,
    numbers,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.weights.layouts import Convolution
from jaxformer.hub.weights.weight_map import block
from jaxformer.models import Projection, VisionConfig
from jaxformer.zoo.common.basics import BASE_SIZES, SIZES, of_head, projections

# The authors give 63M for CLIP's text tower; there, towers include their projections.
COUNTS = "https://github.com/mlfoundations/open_clip/blob/main/docs/model_profile.csv"


def _common(projection: str) -> tuple[Field, ...]:
    """Returns the fields of both towers; `projection` is the field with the vector's width."""
    sizes = numbers(SIZES | {"self_attention.dropout": "attention_dropout"})
    written = of_head(Projection, {"width": projection}).write
    heads = Computed(lambda hf_config: {"heads": ()}, written)
    return (*sizes, NormEps(), Activation(default=None), heads)


def text_fields(projection: str = "projection_dim") -> tuple[Field, ...]:
    """Returns the fields of a text tower; `projection` is the one with the vector's width."""
    return (*_common(projection), Number("vocab_size", "vocab_size"), LearnedPositions())


def _read_patches(hf_config: HFConfig, prefix: int) -> dict[str, Any]:
    image = hf_config.number("image_size")
    patch = hf_config.number("patch_size")
    return {
        "patch": patch,
        "image_size": (image, image),
        "crop": image % patch > 0,
        "position": Learned(max_length=prefix + (image // patch) ** 2),
    }


def _write_patches(config: VisionConfig) -> dict[str, Any]:
    return {"image_size": config.image_size[0], "patch_size": config.patch_size[0]}


def square_patches(prefix: int) -> Computed:
    """Returns the sizes of images and patches, with `prefix` tokens before the patches."""
    return Computed(lambda hf_config: _read_patches(hf_config, prefix), _write_patches)


def vision_fields(patches: Field) -> tuple[Field, ...]:
    """Returns the fields of a vision tower; `patches` is the field of sizes and positions."""
    return (*_common("projection_dim"), Number("channels", "num_channels"), patches)


_BLOCK = {
    **projections("self_attn"),
    "norms.0": "layer_norm1",
    "sublayers.1.up": "mlp.fc1",
    "sublayers.1.down": "mlp.fc2",
    "norms.1": "layer_norm2",
}
TEXT_NAMES = {
    "embedding": "text_model.embeddings.token_embedding",
    "transformer.inputs.position_table": "text_model.embeddings.position_embedding.weight",
    **block("transformer", "text_model.encoder.layers.{}", _BLOCK),
    "transformer.final_norm": "text_model.final_layer_norm",
}
IMAGE_NAMES = {
    "patch_projection": "vision_model.embeddings.patch_embedding",
    "transformer.inputs.position_table": "vision_model.embeddings.position_embedding.weight",
    **block("transformer", "vision_model.encoder.layers.{}", _BLOCK),
}
"""Module of a vision tower -> its name in CLIP and SigLIP."""
LAYOUTS = {"patch_projection.kernel": Convolution()}
_DEFAULTS = {"attention_dropout": 0.0}
TEXT_DEFAULTS = _DEFAULTS | {"pad_token_id": 1, "eos_token_id": 49407}
IMAGE_DEFAULTS = _DEFAULTS | BASE_SIZES | {"num_channels": 3, "image_size": 224}
BUFFERS = ("*embeddings.position_ids",)
