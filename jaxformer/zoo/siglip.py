"""SigLIP: a bidirectional text tower, and a vision tower that a learned query pools."""

import math

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import ConfigMap, Switch
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import LastTokenTask, Task
from jaxformer.hub.tasks.dual_encoders import ContrastiveTask
from jaxformer.hub.weights.layouts import Concatenated, Same
from jaxformer.hub.weights.weight_map import Fused, WeightMap
from jaxformer.models import (
    AttentionPooler,
    DualEncoderConfig,
    EncoderConfig,
    Projection,
    SigmoidContrastive,
    VisionConfig,
)
from jaxformer.nn import MLP, DotProductAttention, PreNorm, TokenEmbeddings
from jaxformer.zoo.common.basics import BASE_SIZES, sized
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
from jaxformer.zoo.common.dual_encoders import OWN_NAMES, dual_encoder, image_part, text_part
from jaxformer.zoo.common.image_classifiers import with_image_classifier
from jaxformer.zoo.common.vit_like import vit
from jaxformer.zoo.system import System


def siglip_text(num_layers: int, model_dim: int, num_heads: int, **changes) -> EncoderConfig:
    """Returns the text tower in any size."""
    fields = {
        "vocab_size": 32000,
        "position": Learned(max_length=64),
        "norm": LayerNorm(eps=1e-6),
        "residual": PreNorm(),
        "embeddings": TokenEmbeddings(),
        "self_attention": DotProductAttention(bias=True, output_bias=True),
        "feed_forward": MLP(activation="gelu_tanh", gated=False, bias=True),
        "dropout": 0.0,
        "heads": (Projection(model_dim, pooling="last", bias=True),),
    }
    return sized(EncoderConfig, num_layers, model_dim, num_heads, **(fields | changes))


def siglip_vision(
    num_layers: int, model_dim: int, num_heads: int, patch: int, **changes
) -> VisionConfig:
    """Returns the vision tower in any size."""
    fields = {
        "class_token": False,
        "position": Learned(max_length=(224 // patch) ** 2),
        "feed_forward": MLP(activation="gelu_tanh", gated=False, bias=True),
        "pooler": AttentionPooler(),
        "heads": (),
    }
    return vit(num_layers, model_dim, num_heads, patch, **(fields | changes))


def siglip(text: EncoderConfig, image: VisionConfig) -> DualEncoderConfig:
    """Returns both towers, with the initial scale and bias of their training."""
    return DualEncoderConfig(
        text,
        image,
        logit_scale=math.log(10),
        max_logit_scale=None,
        logit_bias=-10.0,
        heads=(SigmoidContrastive(),),
    )


_SOURCE = f"Zhai et al., 2023, https://arxiv.org/abs/2303.15343, counted in {COUNTS}"

SYSTEMS = (
    System(
        "siglip-base-patch16-224",
        siglip(siglip_text(12, 768, 12), siglip_vision(12, 768, 12, 16)),
        "203.16M",
        _SOURCE,
    ),
    System("siglip-base-patch16-224-text", siglip_text(12, 768, 12), "110.27M", _SOURCE),
    System("siglip-base-patch16-224-vision", siglip_vision(12, 768, 12, 16), "92.88M", _SOURCE),
)

SWITCH = Switch("pooler", "vision_use_head", on=AttentionPooler(), off=None)
_TEXT_WEIGHT_MAP = WeightMap({**TEXT_NAMES, "heads.projection.output": "text_model.head"})
_JOINED = Fused(
    tuple(f"pooler.attention.{name}" for name in ("query", "key", "value")),
    "vision_model.head.attention.in_proj",
    Concatenated(),
    separator="_",
)
IMAGE_WEIGHT_MAP = WeightMap(
    {
        **IMAGE_NAMES,
        "transformer.final_norm": "vision_model.post_layernorm",
        "pooler.probe": "vision_model.head.probe",
        "pooler.attention.output": "vision_model.head.attention.out_proj",
        "pooler.norm": "vision_model.head.layernorm",
        "pooler.feed_forward.up": "vision_model.head.mlp.fc1",
        "pooler.feed_forward.down": "vision_model.head.mlp.fc2",
    },
    fused=(_JOINED,),
    layouts=LAYOUTS | {"pooler.probe": Same(leading=2)},
)
_OWN_DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
_OWN_TEXT_DEFAULTS = {
    "vocab_size": 32000,
    **BASE_SIZES,
    "max_position_embeddings": 64,
}

TEXT_FORMAT = ModelFormat(
    model_type="siglip_text_model",
    config_map=ConfigMap(siglip_text, text_fields("projection_size")),
    weight_map=lambda _: _TEXT_WEIGHT_MAP,
    architectures=(Architecture("SiglipTextModel", LastTokenTask(), prefix=""),),
    prefix="text_model.",
    buffers=BUFFERS,
    states_end_normalised=False,
    defaults=TEXT_DEFAULTS | _OWN_DEFAULTS | _OWN_TEXT_DEFAULTS,
)
IMAGE_FORMAT = ModelFormat(
    model_type="siglip_vision_model",
    config_map=ConfigMap(siglip_vision, (*vision_fields(square_patches(prefix=0)), SWITCH)),
    weight_map=lambda _: IMAGE_WEIGHT_MAP,
    architectures=(Architecture("SiglipVisionModel", Task()),),
    prefix="vision_model.",
    buffers=BUFFERS,
    defaults=IMAGE_DEFAULTS | _OWN_DEFAULTS | {"patch_size": 16, "vision_use_head": True},
)


def whole(model_type: str, name: str, text: ModelFormat, image: ModelFormat) -> ModelFormat:
    """Returns the format of both towers, whose class names begin with `name`."""
    architecture = Architecture(f"{name}Model", ContrastiveTask(SigmoidContrastive()))
    towers = dual_encoder(
        ModelFormat(
            model_type=model_type,
            config_map=ConfigMap(siglip, ()),
            weight_map=lambda _: WeightMap({}),
            architectures=(architecture,),
        ),
        text_part(text),
        image_part(image),
        WeightMap(OWN_NAMES, layouts=dict.fromkeys(OWN_NAMES, Same(leading=1))),
    )
    return with_image_classifier(towers, f"{name}ForImageClassification")


FORMATS = (
    whole("siglip", "Siglip", TEXT_FORMAT, IMAGE_FORMAT),
    TEXT_FORMAT,
    IMAGE_FORMAT,
)
