"""BEiT: ViT with biases by the offset of patches, trained to predict tokens of masked patches.

BeitForSemanticSegmentation, whose decoder is a convolutional network, is not supported.
"""

from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.base import NoPosition
from jaxformer.functional.positions.patch_bias import PatchBias
from jaxformer.hub.fields import Computed, ConfigMap, Number, Value
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import SequenceClassificationTask, Task
from jaxformer.hub.tasks.images import VisualTokensTask
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import NormPooler, VisionConfig, VisualTokens
from jaxformer.nn import DotProductAttention, PreNorm
from jaxformer.zoo.common.basics import of_head
from jaxformer.zoo.common.vit_like import (
    BACKBONE,
    FIELDS,
    MASKED_LAYOUTS,
    MODULES,
    module_names,
    names,
    patch_grid,
    read_patches,
    vit,
    write_patches,
)
from jaxformer.zoo.system import System


def beit(
    num_layers: int, model_dim: int, num_heads: int, patch: int, **changes: Any
) -> VisionConfig:
    """Returns the architecture of the published classifiers in any size, for 224 x 224 pixels."""
    side = 224 // patch
    fields = {
        "position": NoPosition(),
        "relative_position": PatchBias((side, side), shared=False),
        "self_attention": DotProductAttention(bias=True, key_bias=False, output_bias=True),
        "norm": LayerNorm(eps=1e-12),
        "residual": PreNorm(final_norm=False, layer_scale=0.1),
        "pooler": NormPooler("mean"),
        "interpolate_positions": True,
    }
    return vit(num_layers, model_dim, num_heads, patch, **(fields | changes))


_large = beit(24, 1024, 16, 16, residual=PreNorm(final_norm=False, layer_scale=1e-5))
_SOURCE = "https://github.com/microsoft/unilm/tree/master/beit, models fine-tuned on ImageNet"

SYSTEMS = (
    System("beit-base-patch16-224", beit(12, 768, 12, 16), "87M", _SOURCE),
    System("beit-large-patch16-224", _large, "304M", _SOURCE),
)

_BY_LAYER = "use_relative_position_bias"
_SHARED = "use_shared_relative_position_bias"


def _read_positions(hf_config: HFConfig) -> dict[str, Any]:
    values = read_patches(hf_config, prefix=1)
    by_layer = hf_config.take(_BY_LAYER, False)
    shared = hf_config.take(_SHARED, False)
    if by_layer and shared:
        raise ConfigError(
            f"{hf_config.path}: {_BY_LAYER} = True, {_SHARED} = True: must not both be true; "
            "either each layer has biases, or all layers share them"
        )
    if not hf_config.take("use_absolute_position_embeddings", False):
        values["position"] = NoPosition()
    bias = PatchBias(patch_grid(values), shared=bool(shared))
    return values | {"relative_position": bias if by_layer or shared else None}


def _write_positions(config: VisionConfig) -> dict[str, Any]:
    bias = config.relative_position
    return write_patches(config) | {
        "use_absolute_position_embeddings": config.position != NoPosition(),
        _BY_LAYER: bias is not None and not bias.shared,
        _SHARED: bias is not None and bias.shared,
    }


def _read_pooling(hf_config: HFConfig) -> dict[str, Any]:
    """The mean over the patches is normalised instead of all states."""
    mean = bool(hf_config.take("use_mean_pooling", True))
    return {
        "residual.final_norm": not mean,
        "pooler": NormPooler("mean") if mean else None,
    }


def _read_scale(hf_config: HFConfig) -> dict[str, Any]:
    initial = hf_config.number("layer_scale_init_value", 0.1)
    return {"residual.layer_scale": initial if initial > 0 else None}


_FIELDS = (
    *FIELDS,
    Number("mlp_dim", "intermediate_size", 3072),
    Value("mask_token", "use_mask_token", False),
    Computed(_read_positions, _write_positions),
    Computed(_read_pooling, lambda config: {"use_mean_pooling": not config.residual.final_norm}),
    Computed(
        _read_scale, lambda config: {"layer_scale_init_value": config.residual.layer_scale or 0.0}
    ),
    of_head(VisualTokens, {"num_tokens": "vocab_size"}),
)
_BIAS = "relative_position_bias"
_TABLE = f"{_BIAS}.relative_position_bias_table"
_LAYER = "transformer.stack.group.*"
_NAMES = {
    **names("beit"),
    f"{_LAYER}.sublayers.0.position_table": f"beit.encoder.layer.{{}}.attention.attention.{_TABLE}",
    f"{_LAYER}.scales.0": "beit.encoder.layer.{}.lambda_1",
    f"{_LAYER}.scales.1": "beit.encoder.layer.{}.lambda_2",
    "transformer.inputs.relative_table": f"beit.encoder.{_TABLE}",
    "pooler": "beit.pooler.layernorm",
    "heads.visual_tokens.norm": "layernorm",
    "heads.visual_tokens.output": "lm_head",
}
_MODULES = MODULES | {_BIAS: f"attention.attention.{_BIAS}"}

FORMATS = (
    ModelFormat(
        model_type="beit",
        config_map=ConfigMap(beit, _FIELDS),
        weight_map=lambda _: WeightMap(_NAMES, layouts=MASKED_LAYOUTS),
        architectures=(
            Architecture("BeitForImageClassification", SequenceClassificationTask()),
            Architecture("BeitForMaskedImageModeling", VisualTokensTask(), {"pooler": None}),
            Architecture("BeitModel", Task()),
        ),
        prefix="beit.",
        aliases=module_names("beit.", _MODULES),
        buffers=("*relative_position_index",),
        harmless=(
            *BACKBONE,
            "vocab_size",
            "pool_scales",
            "*auxiliary_*",
            "semantic_loss_ignore_index",
            "add_fpn",
            "segmentation_indices",
        ),
    ),
)
