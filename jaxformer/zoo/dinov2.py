"""DINOv2: ViT with a learned scale on each sublayer, and SwiGLU in its largest size."""

from dataclasses import replace
from typing import Any

from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import SequenceClassificationTask, Task
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import Fused, WeightMap
from jaxformer.models import VisionConfig
from jaxformer.zoo.vit import ATTENTION, LAYOUTS, TINY, names, read_vit, write_vit


def read_dinov2(hf_config: HFConfig) -> VisionConfig:
    """The architecture that a config.json describes."""
    config = read_vit(hf_config)
    width = int(config.model_dim * hf_config.number("mlp_ratio", 4))
    if swiglu := hf_config.take("use_swiglu_ffn", False):
        width = _swiglu_width(width)
    return replace(
        config,
        mlp_dim=width,
        gated=swiglu,
        activation="silu" if swiglu else config.activation,
        layer_scale=hf_config.number("layerscale_value", 1.0),
        mask_token=hf_config.take("use_mask_token", True),
        pooler=None,
    )


def _swiglu_width(width: int) -> int:
    """Two thirds of the width of a layer without a gate, as a multiple of 8."""
    return (int(width * 2 / 3) + 7) // 8 * 8


def write_dinov2(config: VisionConfig) -> dict[str, Any]:
    """And back."""
    # The nearest whole ratio; whether it gives the width is found when this is read again.
    ratio = config.mlp_dim / config.model_dim * (1.5 if config.gated else 1)
    values = write_vit(config)
    for name in ("intermediate_size", "pooler_output_size", "pooler_act"):
        del values[name]
    return values | {
        "mlp_ratio": round(ratio),
        "use_swiglu_ffn": config.gated,
        "layerscale_value": config.layer_scale,
        "use_mask_token": config.mask_token,
        "hidden_act": "gelu" if config.gated else values["hidden_act"],
    }


_BLOCK = {
    **ATTENTION,
    "norms.0": "norm1",
    "scales.0": "layer_scale1.lambda1",
    "norms.1": "norm2",
    "scales.1": "layer_scale2.lambda1",
}


def weight_map(config: VisionConfig) -> WeightMap:
    """The names of the tensors; gate and first layer of SwiGLU are one."""
    up, gate, down = (f"sublayers.1.{part}" for part in ("up", "gate", "down"))
    if not config.gated:
        return WeightMap(
            names("dinov2", _BLOCK | {up: "mlp.fc1", down: "mlp.fc2"}), layouts=LAYOUTS
        )
    layer = "transformer.stack.group.*"
    joined = Fused(
        (f"{layer}.{gate}", f"{layer}.{up}"),
        "dinov2.encoder.layer.{}.mlp.weights_in",
        Concatenated(),
    )
    own = names("dinov2", _BLOCK | {down: "mlp.weights_out"})
    return WeightMap(own, fused=(joined,), layouts=LAYOUTS)


FORMATS = (
    ModelFormat(
        model_type="dinov2",
        read=read_dinov2,
        write=write_dinov2,
        weight_map=weight_map,
        architectures=(
            Architecture(
                "Dinov2ForImageClassification", SequenceClassificationTask("first_and_mean")
            ),
            Architecture("Dinov2Model", Task()),
        ),
        # Square: transformers resizes the positions of all other images, as if these were.
        tiny={name: TINY[name] for name in TINY if name != "intermediate_size"}
        | {"image_size": 12, "patch_size": 4, "mlp_ratio": 2},
        prefix="dinov2.",
        defaults={"patch_size": 14, "layer_norm_eps": 1e-6},
        harmless=(
            "drop_path_rate",
            "apply_layernorm",
            "reshape_hidden_states",
            "out_*",
            "_out_*",
            "stage_names",
        ),
    ),
)
