"""ViT, and the shape of ViT-22B."""

from typing import Any

from jaxformer.functional.norms import LayerNorm, RMSNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import SequenceClassificationTask, Task
from jaxformer.hub.weights.layouts import Patches, Same
from jaxformer.hub.weights.weight_map import WeightMap, attention, block
from jaxformer.models import Classification, VisionConfig
from jaxformer.nn import Parallel
from jaxformer.zoo.system import System


def vit(num_layers: int, model_dim: int, num_heads: int, patch: int, **changes) -> VisionConfig:
    """The architecture in any size, for 224 x 224 pixels and 1000 classes."""
    fields = {
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * model_dim,
        "image_size": (224, 224),
        "patch_size": (patch, patch),
        "position": Learned(max_length=1 + (224 // patch) ** 2),
        "norm": LayerNorm(eps=1e-6),
    }
    return VisionConfig(**(fields | changes))


_SOURCE = "Dosovitskiy et al., 2020, table 1, https://arxiv.org/abs/2010.11929"

SYSTEMS = (
    System("vit-base-16", "vit.py:base-16", vit(12, 768, 12, 16), "86M", _SOURCE),
    System(
        "vit-large-16",
        "vit.py:large-16",
        vit(24, 1024, 16, 16),
        "307M",
        _SOURCE,
        "patches of 32 x 32",
    ),
    System("vit-huge-14", "vit.py:huge-14", vit(32, 1280, 16, 14), "632M", _SOURCE),
    System(
        "vit-22b",
        "vit.py:22b",
        vit(
            48,
            6144,
            48,
            14,
            norm=RMSNorm(eps=1e-6),
            residual=Parallel(shared_norm=True),
            query_key_norm=LayerNorm(eps=1e-6, bias=False),
            attention_bias=False,
            # The mean over the patches stands in for the paper's attention pooling.
            class_token=False,
            position=Learned(max_length=16 * 16),
            heads=(Classification(num_labels=1000, pooling="mean"),),
        ),
        "21743M",
        "Dehghani et al., 2023, table 1, https://arxiv.org/abs/2302.05442",
        "the matrices of the blocks",
    ),
)


def read_vit(hf_config: HFConfig, **changes: Any) -> VisionConfig:
    """The architecture that a config.json describes.

    Args:
        hf_config: The configuration.
        **changes: Fields of our configuration that a relative has besides.
    """
    model_dim = hf_config.number("hidden_size", 768)
    hf_config.expect("pooler_output_size", model_dim, None)
    image, patch = (_pair(hf_config.take(f"{name}_size", n)) for name, n in _SIZES.items())
    prefix = 2 if changes.get("distillation_token") else 1
    positions = prefix + (image[0] // patch[0]) * (image[1] // patch[1])
    fields = {
        "mlp_dim": hf_config.number("intermediate_size", 3072),
        "image_size": image,
        "patch_size": patch,
        "channels": hf_config.number("num_channels", 3),
        "position": Learned(positions),
        "norm": LayerNorm(eps=hf_config.number("layer_norm_eps", 1e-12)),
        "activation": read_activation(hf_config, "hidden_act", "gelu"),
        "attention_bias": hf_config.take("qkv_bias", True),
        "pooler": read_activation(hf_config, "pooler_act", "tanh"),
        "dropout": hf_config.number("hidden_dropout_prob", 0.0),
        "attention_dropout": hf_config.number("attention_probs_dropout_prob", 0.0),
    }
    layers = hf_config.number("num_hidden_layers", 12)
    heads = hf_config.number("num_attention_heads", 12)
    return vit(layers, model_dim, heads, patch[0], **(fields | changes))


_SIZES = {"image": 224, "patch": 16}


def _pair(size: int | list[int]) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def write_vit(config: VisionConfig) -> dict[str, Any]:
    """And back."""
    sizes = {"image_size": config.image_size, "patch_size": config.patch_size}
    return {
        **{name: a if a == b else [a, b] for name, (a, b) in sizes.items()},
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.model_dim,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "num_channels": config.channels,
        "layer_norm_eps": config.norm.eps,
        "hidden_act": write_activation(config.activation),
        "qkv_bias": config.attention_bias,
        "pooler_output_size": config.model_dim,
        "pooler_act": write_activation(config.pooler or "tanh"),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
    }


ATTENTION = attention(
    0,
    query="attention.attention.query",
    key="attention.attention.key",
    value="attention.attention.value",
    output="attention.output.dense",
)
_BLOCK = {
    **ATTENTION,
    "norms.0": "layernorm_before",
    "sublayers.1.up": "intermediate.dense",
    "sublayers.1.down": "output.dense",
    "norms.1": "layernorm_after",
}


def names(name: str, blocks: dict[str, str] = _BLOCK) -> dict[str, str]:
    """Names of the modules, for ViT and its relatives.

    Args:
        name: What comes before them in models with heads: "vit".
        blocks: Our path within a block -> theirs.
    """
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
    }


LAYOUTS = {
    "patch_projection.kernel": Patches(),
    "class_token": Same(leading=2),
    "distillation_token": Same(leading=2),
    "mask_token": Same(leading=1),
    "transformer.inputs.position_table": Same(leading=1),
}
TINY = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 56,
    "image_size": [8, 12],
    "patch_size": [4, 3],
    "num_channels": 2,
}

FORMATS = (
    ModelFormat(
        model_type="vit",
        read=read_vit,
        write=write_vit,
        weight_map=lambda config: WeightMap(names("vit"), layouts=LAYOUTS),
        architectures=(
            Architecture(
                "ViTForImageClassification", SequenceClassificationTask(), {"pooler": None}
            ),
            Architecture("ViTModel", Task()),
        ),
        tiny=TINY,
        prefix="vit.",
        harmless=("encoder_stride",),
    ),
)
