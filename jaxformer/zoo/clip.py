"""CLIP: a causal text tower and a vision tower, whose vectors are compared."""

from dataclasses import replace
from functools import partial

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import EndTokenTask, ImageEmbeddingTask, Task, TextEmbeddingTask
from jaxformer.hub.tasks.dual_encoders import ContrastiveTask
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig, DualEncoderConfig, NormPooler, Projection, VisionConfig
from jaxformer.nn import MLP, Embeddings, PreNorm
from jaxformer.zoo.common.basics import their_sizes
from jaxformer.zoo.common.clip_like import (
    BUFFERS,
    COUNTS,
    IMAGE_DEFAULTS,
    IMAGE_NAMES,
    LAYOUTS,
    TEXT_DEFAULTS,
    TEXT_NAMES,
    square_patches,
    text_fields,
    vision_fields,
)
from jaxformer.zoo.common.dual_encoders import (
    LOGIT_SCALE,
    OWN_NAMES,
    PROJECTION_WIDTH,
    dual_encoder,
    image_part,
    text_part,
)
from jaxformer.zoo.common.gpt_like import gpt
from jaxformer.zoo.common.image_classifiers import with_image_classifier
from jaxformer.zoo.common.vit_like import vit
from jaxformer.zoo.system import System


def clip_text(num_layers: int, model_dim: int, num_heads: int, **changes) -> DecoderConfig:
    """Returns the text tower in any size."""
    fields = {
        "vocab_size": 49408,
        "position": Learned(max_length=77),
        "feed_forward": MLP(activation="quick_gelu", gated=False, bias=True),
        "heads": (Projection(model_dim, pooling="last"),),
    }
    return gpt(num_layers, model_dim, num_heads, **(fields | changes))


def clip_vision(
    num_layers: int, model_dim: int, num_heads: int, patch: int, **changes
) -> VisionConfig:
    """Returns the vision tower in any size."""
    norm = changes.get("norm", LayerNorm(eps=1e-5))
    fields = {
        "norm": norm,
        "patch_bias": False,
        "embeddings": Embeddings(norm=norm),
        "residual": PreNorm(final_norm=False),
        "feed_forward": MLP(activation="quick_gelu", gated=False, bias=True),
        "pooler": NormPooler(),
    }
    return vit(num_layers, model_dim, num_heads, patch, **(fields | changes))


def clip(text: DecoderConfig, image: VisionConfig, width: int) -> DualEncoderConfig:
    """Returns both towers, with vectors of width `width`."""
    return DualEncoderConfig(
        replace(text, heads=(Projection(width, pooling="last"),)),
        replace(image, heads=(Projection(width),)),
        logit_scale=LOGIT_SCALE.default,
    )


_TEXT = clip_text(12, 512, 8)
_SOURCE = f"Radford et al., 2021, https://arxiv.org/abs/2103.00020, counted in {COUNTS}"

_system = partial(System, source=_SOURCE)

SYSTEMS = (
    _system("clip-vit-base-patch32", clip(_TEXT, clip_vision(12, 768, 12, 32), 512), "151.28M"),
    _system("clip-vit-base-patch16", clip(_TEXT, clip_vision(12, 768, 12, 16), 512), "149.62M"),
    _system(
        "clip-vit-large-patch14",
        clip(clip_text(12, 768, 12), clip_vision(24, 1024, 16, 14), 768),
        "427.62M",
    ),
    _system("clip-vit-base-patch32-text", _TEXT, "63.43M"),
    _system(
        "clip-vit-base-patch32-vision",
        clip_vision(12, 768, 12, 32, heads=(Projection(512),)),
        "87.85M",
    ),
)

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
_OWN_DEFAULTS = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 512}
_OWN_TEXT_DEFAULTS = {
    "vocab_size": 49408,
    **their_sizes(12, 512, 8, 2048),
    "max_position_embeddings": 77,
}
# Only classes with a projection read this width.
_HARMLESS = ("projection_dim", "tie_word_embeddings")

_TEXT_FORMAT = ModelFormat(
    model_type="clip_text_model",
    config_map=ConfigMap(clip_text, text_fields()),
    weight_map=lambda _: _TEXT_WEIGHT_MAP,
    architectures=(
        Architecture("CLIPTextModelWithProjection", TextEmbeddingTask()),
        Architecture("CLIPTextModel", EndTokenTask(), prefix=""),
    ),
    prefix="text_model.",
    flax=FlaxFormat(bare_prefix="text_model."),
    buffers=BUFFERS,
    harmless=_HARMLESS,
    states_end_normalised=False,
    defaults=TEXT_DEFAULTS | _OWN_DEFAULTS | _OWN_TEXT_DEFAULTS,
)
_VISION_FORMAT = ModelFormat(
    model_type="clip_vision_model",
    config_map=ConfigMap(clip_vision, vision_fields(square_patches(prefix=1))),
    weight_map=lambda _: _VISION_WEIGHT_MAP,
    architectures=(
        Architecture("CLIPVisionModelWithProjection", ImageEmbeddingTask()),
        Architecture("CLIPVisionModel", Task()),
    ),
    prefix="vision_model.",
    flax=FlaxFormat(bare_prefix="vision_model."),
    buffers=BUFFERS,
    harmless=_HARMLESS,
    defaults=IMAGE_DEFAULTS | _OWN_DEFAULTS | {"patch_size": 32},
)

FORMATS = (
    with_image_classifier(
        dual_encoder(
            ModelFormat(
                model_type="clip",
                config_map=ConfigMap(DualEncoderConfig, (LOGIT_SCALE, PROJECTION_WIDTH)),
                weight_map=lambda _: WeightMap({}),
                architectures=(Architecture("CLIPModel", ContrastiveTask()),),
                harmless=("projection_dim",),
                defaults={"projection_dim": 512},
            ),
            text_part(
                _TEXT_FORMAT,
                shared=("projection_dim",),
                older_section="text_config_dict",
            ),
            image_part(
                _VISION_FORMAT,
                shared=("projection_dim",),
                older_section="vision_config_dict",
            ),
            WeightMap(OWN_NAMES),
        ),
        "CLIPForImageClassification",
    ),
    _TEXT_FORMAT,
    _VISION_FORMAT,
)
