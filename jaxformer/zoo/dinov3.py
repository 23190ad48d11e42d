"""DINOv3: a ViT with register tokens, and RoPE over rows and columns of patches."""

from functools import partial
from typing import Any

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.patch_rope import RoPE2D
from jaxformer.hub.fields import Activation, Computed, ConfigMap, NormEps, Number, Value, numbers
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import Task
from jaxformer.hub.weights.layouts import Constant, Convolution, Same
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import VisionConfig
from jaxformer.nn import MLP, DotProductAttention, PreNorm
from jaxformer.zoo.common.basics import SIZES, projections, sized, their_sizes
from jaxformer.zoo.common.vit_like import BACKBONE, patch_grid, read_patches, write_patches
from jaxformer.zoo.system import System

_dinov3 = partial(VisionConfig, interpolate_positions=True, mask_token=True, heads=())


def _sized(
    num_layers: int, model_dim: int, num_heads: int, mlp_dim: int, **changes: Any
) -> VisionConfig:
    """The published architecture in any size."""
    fields = {
        "image_size": (224, 224),
        "patch_size": (16, 16),
        "register_tokens": 4,
        "position": RoPE2D(grid=(14, 14), theta=100.0, prefix=5),
        "norm": LayerNorm(eps=1e-5),
        "self_attention": DotProductAttention(bias=True, key_bias=False, output_bias=True),
        "residual": PreNorm(layer_scale=1.0),
    }
    return sized(_dinov3, num_layers, model_dim, num_heads, mlp_dim, **(fields | changes))


_SOURCE = "Siméoni et al., 2025, https://github.com/facebookresearch/dinov3"
_GATED = {"feed_forward": MLP(bias=True)}

SYSTEMS = (
    System("dinov3-vits16", _sized(12, 384, 6, 1536), "21M", _SOURCE),
    System("dinov3-vits16plus", _sized(12, 384, 6, 1536, **_GATED), "29M", _SOURCE),
    System("dinov3-vitb16", _sized(12, 768, 12, 3072), "86M", _SOURCE),
    System("dinov3-vitl16", _sized(24, 1024, 16, 4096), "300M", _SOURCE),
    System("dinov3-vith16plus", _sized(32, 1280, 20, 5120, **_GATED), "840M", _SOURCE),
    System(
        "dinov3-vit7b16",
        _sized(
            40,
            4096,
            32,
            8192,
            self_attention=DotProductAttention(key_bias=False, output_bias=True),
            **_GATED,
        ),
        "6716M",
        _SOURCE,
    ),
)


def _read_patches(hf_config: HFConfig) -> dict[str, Any]:
    registers = hf_config.number("num_register_tokens", 0)
    values = read_patches(hf_config, 1 + registers)
    del values["patch"]
    theta = float(hf_config.number("rope_theta", 100.0))
    position = RoPE2D(grid=patch_grid(values), theta=theta, prefix=1 + registers)
    return values | {"register_tokens": registers, "position": position}


def _write_patches(config: VisionConfig) -> dict[str, Any]:
    return {
        **write_patches(config),
        "num_register_tokens": config.register_tokens,
        "rope_theta": config.position.theta,
    }


def _read_biases(hf_config: HFConfig) -> dict[str, Any]:
    names = ("query_bias", "key_bias", "value_bias")
    query, key, value = (hf_config.take(name, name != "key_bias") for name in names)
    if query != value or (key and not query):
        raise ConfigError(
            f"{hf_config.path}: query_bias = {query}, key_bias = {key}, value_bias = {value} is "
            "not supported: query_bias and value_bias must be equal, and key_bias only true with "
            "them"
        )
    return {"self_attention.bias": query, "self_attention.key_bias": key}


def _write_biases(config: VisionConfig) -> dict[str, Any]:
    own = config.self_attention.bias
    of_keys = config.self_attention.key_bias
    return {"query_bias": own, "key_bias": own and of_keys, "value_bias": own}


_FIELDS = (
    *numbers(SIZES | {"channels": "num_channels"}),
    NormEps(default=1e-5),
    Activation(default="gelu"),
    Number("self_attention.dropout", "attention_dropout", 0.0),
    Number("residual.layer_scale", "layerscale_value", 1.0),
    Value("self_attention.output_bias", "proj_bias", True),
    Value("feed_forward.bias", "mlp_bias", True),
    Value("feed_forward.gated", "use_gated_mlp", False),
    Computed(_read_patches, _write_patches),
    Computed(_read_biases, _write_biases),
)
_NAMES = {
    "patch_projection": "embeddings.patch_embeddings",
    "class_token": "embeddings.cls_token",
    "register_table": "embeddings.register_tokens",
    "mask_token": "embeddings.mask_token",
    **block(
        "transformer",
        "layer.{}",
        {
            **projections("attention", "o_proj"),
            "norms.0": "norm1",
            "scales.0": "layer_scale1.lambda1",
            "sublayers.1.up": "mlp.up_proj",
            "sublayers.1.gate": "mlp.gate_proj",
            "sublayers.1.down": "mlp.down_proj",
            "norms.1": "norm2",
            "scales.1": "layer_scale2.lambda1",
        },
    ),
    "transformer.final_norm": "norm",
}
_LAYOUTS = {
    "patch_projection.kernel": Convolution(),
    "class_token": Same(leading=2),
    "mask_token": Same(leading=2),
    "register_table": Same(leading=1),
}


def _weight_map(config: VisionConfig) -> WeightMap:
    if config.register_tokens:
        return WeightMap(_NAMES, layouts=_LAYOUTS)
    # Files of models without register tokens have an empty table.
    shape = (1, 0, config.model_dim)
    none = Constant(shape, partial(np.zeros, shape, np.float32))
    return WeightMap(_NAMES, layouts=_LAYOUTS, constants={"embeddings.register_tokens": none})


FORMATS = (
    ModelFormat(
        model_type="dinov3_vit",
        config_map=ConfigMap(_dinov3, _FIELDS),
        weight_map=_weight_map,
        architectures=(Architecture("DINOv3ViTModel", Task()),),
        aliases={r"^model\.layer\.": "layer."},
        # The second acts only in training.
        harmless=(*BACKBONE, "pos_embed_*", "apply_layernorm", "return_class_token"),
        defaults={
            **their_sizes(12, 384, 6, 1536),
            "num_channels": 3,
        },
    ),
)
