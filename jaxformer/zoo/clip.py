"""CLIP: a causal text tower and a vision tower, whose vectors are compared."""

from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.embedding_tasks import EndTokenTask, ImageEmbeddingTask, TextEmbeddingTask
from jaxformer.hub.fields import read_numbers, write_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import Task
from jaxformer.hub.weights.layouts import Patches
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import DecoderConfig, NormPooler, Projection, VisionConfig
from jaxformer.models.model import ModelConfig
from jaxformer.nn import PreNorm
from jaxformer.zoo.gpt import gpt
from jaxformer.zoo.system import System
from jaxformer.zoo.vit import vit


def clip_text(num_layers: int, model_dim: int, num_heads: int, **changes) -> DecoderConfig:
    """The text tower in any size."""
    fields = {
        "vocab_size": 49408,
        "position": Learned(max_length=77),
        "activation": "quick_gelu",
        "heads": (Projection(model_dim, pooling="last"),),
    }
    return gpt(num_layers, model_dim, num_heads, **(fields | changes))


def clip_vision(
    num_layers: int, model_dim: int, num_heads: int, patch: int, **changes
) -> VisionConfig:
    """The vision tower in any size."""
    norm = changes.get("norm", LayerNorm(eps=1e-5))
    fields = {
        "norm": norm,
        "patch_bias": False,
        "embedding_norm": norm,
        "residual": PreNorm(final_norm=False),
        "activation": "quick_gelu",
        "pooler": NormPooler(),
    }
    return vit(num_layers, model_dim, num_heads, patch, **(fields | changes))


# The authors give 63M for the text tower; the towers are counted with their projections there.
COUNTS = "https://github.com/mlfoundations/open_clip/blob/main/docs/model_profile.csv"
_SOURCE = f"Radford et al., 2021, https://arxiv.org/abs/2103.00020, counted in {COUNTS}"

SYSTEMS = (
    System("clip-vit-base-patch32-text", "", clip_text(12, 512, 8), "63.43M", _SOURCE),
    System(
        "clip-vit-base-patch32-vision",
        "",
        clip_vision(12, 768, 12, 32, heads=(Projection(512),)),
        "87.85M",
        _SOURCE,
    ),
)

_NUMBERS = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "attention_dropout": "attention_dropout",
}
_TEXT_NUMBERS = _NUMBERS | {"vocab_size": "vocab_size"}
_IMAGE_NUMBERS = _NUMBERS | {"channels": "num_channels"}


def _read_common(hf_config: HFConfig) -> dict[str, Any]:
    return {
        "norm": LayerNorm(eps=hf_config.number("layer_norm_eps")),
        "activation": read_activation(hf_config, "hidden_act", None),
        "heads": (),
    }


def _write_common(config: ModelConfig, projection: str) -> dict[str, Any]:
    values = {
        "layer_norm_eps": config.norm.eps,
        "hidden_act": write_activation(config.activation),
    }
    for head in config.heads:
        if isinstance(head, Projection):
            values[projection] = head.width
    return values


def text_fields(hf_config: HFConfig) -> dict[str, Any]:
    """What a config.json says of a text tower, as fields of our configuration."""
    return {
        **read_numbers(hf_config, _TEXT_NUMBERS),
        **_read_common(hf_config),
        "position": Learned(max_length=hf_config.number("max_position_embeddings")),
    }


def image_fields(hf_config: HFConfig, prefix: int) -> dict[str, Any]:
    """What a config.json says of a vision tower; `prefix` tokens come before the patches."""
    image, patch = hf_config.number("image_size"), hf_config.number("patch_size")
    return {
        **read_numbers(hf_config, _IMAGE_NUMBERS),
        **_read_common(hf_config),
        "patch": patch,
        "image_size": (image, image),
        "crop": image % patch > 0,
        "position": Learned(max_length=prefix + (image // patch) ** 2),
    }


def write_text(config: ModelConfig, projection: str = "projection_dim") -> dict[str, Any]:
    """A config.json of a text tower.

    Args:
        config: Ours.
        projection: The field with the width of the vector.
    """
    return {
        **write_fields(config, _TEXT_NUMBERS),
        **_write_common(config, projection),
        "max_position_embeddings": config.position.max_length,
    }


def write_images(config: VisionConfig) -> dict[str, Any]:
    """A config.json of a vision tower."""
    return {
        **write_fields(config, _IMAGE_NUMBERS),
        **_write_common(config, "projection_dim"),
        "image_size": config.image_size[0],
        "patch_size": config.patch_size[0],
    }


_BLOCK = {
    **attention(
        0,
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.out_proj",
    ),
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
"""What the vision towers of CLIP and SigLIP call alike."""
LAYOUTS = {"patch_projection.kernel": Patches()}
_TEXT_WEIGHT_MAP = WeightMap({**TEXT_NAMES, "heads.projection.output": "text_projection"})
_VISION_WEIGHT_MAP = WeightMap(
    {
        **IMAGE_NAMES,
        "class_token": "vision_model.embeddings.class_embedding",
        "transformer.inputs.embedding_norm": "vision_model.pre_layrnorm",
        "pooler": "vision_model.post_layernorm",
        "heads.projection.output": "visual_projection",
    },
    layouts=LAYOUTS,
)

_DEFAULTS = {"num_hidden_layers": 12, "attention_dropout": 0.0}
TEXT_DEFAULTS = _DEFAULTS | {"num_attention_heads": 8, "pad_token_id": 1, "eos_token_id": 49407}
IMAGE_DEFAULTS = _DEFAULTS | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
}
_OWN_DEFAULTS = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 512}
_OWN_TEXT_DEFAULTS = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "max_position_embeddings": 77,
}
_TINY = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 56,
}
TINY_TEXT = _TINY | {
    "vocab_size": 131,
    "max_position_embeddings": 17,
    "bos_token_id": 3,
    "eos_token_id": 4,
    "pad_token_id": 5,
}
TINY_IMAGES = _TINY | {"image_size": 13, "patch_size": 4, "num_channels": 2}
BUFFERS = ("*embeddings.position_ids",)
# Only the classes with a projection have one of this width.
_HARMLESS = ("projection_dim",)

FORMATS = (
    ModelFormat(
        model_type="clip_text_model",
        read=lambda hf_config: clip_text(**text_fields(hf_config)),
        write=write_text,
        weight_map=lambda _: _TEXT_WEIGHT_MAP,
        architectures=(
            Architecture("CLIPTextModelWithProjection", TextEmbeddingTask()),
            Architecture("CLIPTextModel", EndTokenTask(), prefix=""),
        ),
        tiny=TINY_TEXT | {"projection_dim": 40},
        prefix="text_model.",
        buffers=BUFFERS,
        harmless=_HARMLESS,
        states_end_normalised=False,
        defaults=TEXT_DEFAULTS | _OWN_DEFAULTS | _OWN_TEXT_DEFAULTS,
    ),
    ModelFormat(
        model_type="clip_vision_model",
        read=lambda hf_config: clip_vision(**image_fields(hf_config, prefix=1)),
        write=write_images,
        weight_map=lambda _: _VISION_WEIGHT_MAP,
        architectures=(
            Architecture("CLIPVisionModelWithProjection", ImageEmbeddingTask()),
            Architecture("CLIPVisionModel", Task()),
        ),
        tiny=TINY_IMAGES | {"projection_dim": 40},
        prefix="vision_model.",
        buffers=BUFFERS,
        harmless=_HARMLESS,
        defaults=IMAGE_DEFAULTS | _OWN_DEFAULTS | {"patch_size": 32},
    ),
)
