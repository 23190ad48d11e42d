"""Shared parts of ViT and its relatives."""

import re
from collections.abc import Mapping
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Activation, Computed, NormEps, Number, Value
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks.images import MaskedPixelsTask
from jaxformer.hub.weights.layouts import Convolution, PixelShuffle, Same
from jaxformer.hub.weights.weight_map import block
from jaxformer.models import MaskedPixels, VisionConfig
from jaxformer.zoo.common.basics import of_head, projections, sized


def vit(
    num_layers: int, model_dim: int, num_heads: int, patch: int, **changes: Any
) -> VisionConfig:
    """Returns ViT's architecture in any size, for 224 x 224 pixels and 1000 classes."""
    fields = {
        "image_size": (224, 224),
        "patch_size": (patch, patch),
        "position": Learned(max_length=1 + (224 // patch) ** 2),
        "norm": LayerNorm(eps=1e-6),
    }
    return sized(VisionConfig, num_layers, model_dim, num_heads, **(fields | changes))


ATTENTION_MODULES = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
}
MODULES = ATTENTION_MODULES | {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
"""The names of a layer's modules in transformers 5 -> their names in files."""


def module_names(
    prefix: str, modules: Mapping[str, str] = MODULES, decoder: str = ""
) -> dict[str, str]:
    """Regular expressions of the modules that adapters name, by alias."""
    body = rf"(?:{re.escape(prefix)})?"
    layer = rf"{body}encoder\.layer\.\d+\." + (f"|{decoder}" if decoder else "")
    inside = {rf"^({layer}){re.escape(old)}\.": rf"\1{new}." for old, new in modules.items()}
    return {rf"^({body})layers\.(?=\d)": r"\1encoder.layer."} | inside


_SIZES = {"image_size": 224, "patch_size": 16}


def _pair(size: int | list[int]) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def read_patches(hf_config: HFConfig, prefix: int) -> dict[str, Any]:
    """Returns the sizes of images and patches, and the positions."""
    sizes = {name: _pair(hf_config.take(name, size)) for name, size in _SIZES.items()}
    rows, columns = patch_grid(sizes)
    position = Learned(prefix + rows * columns)
    return sizes | {"patch": sizes["patch_size"][0], "position": position}


def patch_grid(values: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the rows and columns of patches of the images that `read_patches` has read."""
    pairs = zip(values["image_size"], values["patch_size"], strict=True)
    height, width = (pixels // patch for pixels, patch in pairs)
    return height, width


def write_patches(config: VisionConfig) -> dict[str, Any]:
    """Returns the fields of config.json with the sizes of images and patches."""
    sizes = {name: getattr(config, name) for name in _SIZES}
    return {name: a if a == b else [a, b] for name, (a, b) in sizes.items()}


FIELDS = (
    Number("num_layers", "num_hidden_layers", 12),
    Number("model_dim", "hidden_size", 768),
    Number("num_heads", "num_attention_heads", 12),
    Number("channels", "num_channels", 3),
    NormEps(default=1e-12),
    Activation(default="gelu"),
    Number("dropout", "hidden_dropout_prob", 0.0),
    Number("self_attention.dropout", "attention_probs_dropout_prob", 0.0),
)
"""The fields of config.json that all relatives have."""
QKV_BIAS = Value("self_attention.bias", "qkv_bias", True)
ONE_TOKEN = Computed(lambda hf_config: read_patches(hf_config, prefix=1), write_patches)
"""A class token comes before the patches."""
ATTENTION = projections(
    "attention",
    "output.dense",
    parts=("attention.query", "attention.key", "attention.value"),
)
BLOCK = {
    **ATTENTION,
    "norms.0": "layernorm_before",
    "sublayers.1.up": "intermediate.dense",
    "sublayers.1.down": "output.dense",
    "norms.1": "layernorm_after",
}


def names(name: str, blocks: dict[str, str] = BLOCK) -> dict[str, str]:
    """Returns the names of the modules."""
    return {
        "patch_projection": f"{name}.embeddings.patch_embeddings.projection",
        "class_token": f"{name}.embeddings.cls_token",
        "distillation_token": f"{name}.embeddings.distillation_token",
        "mask_token": f"{name}.embeddings.mask_token",
        "transformer.inputs.position_table": f"{name}.embeddings.position_embeddings",
        **block("transformer", f"{name}.encoder.layer.{{}}", blocks),
        "transformer.final_norm": f"{name}.layernorm",
        "pooler": f"{name}.pooler.dense",
        "heads.label.output": "classifier",
        "heads.masked_pixels.output": "decoder.0",
    }


STRIDE = of_head(MaskedPixels, MaskedPixelsTask.FIELDS)
"""The size of the prediction for a masked patch."""
BACKBONE = ("drop_path_rate", "out_*", "_out_*", "reshape_hidden_states", "stage_names")
"""Fields of config.json for training, and for models that contain this one."""
LAYOUTS = {
    "patch_projection.kernel": Convolution(),
    "class_token": Same(leading=2),
    "distillation_token": Same(leading=2),
    "mask_token": Same(leading=1),
    "transformer.inputs.position_table": Same(leading=1),
}
"""Layouts of parameters that differ from the default."""
MASKED_LAYOUTS = LAYOUTS | {
    "mask_token": Same(leading=2),
    "heads.masked_pixels.output.*": PixelShuffle(),
}
"""Layouts in ViT, DeiT and BEiT, whose mask token is stored like the class token."""
