"""DINOv2: ViT with a learned scale on each sublayer, and SwiGLU in its largest size."""

from functools import partial
from typing import Any

from jaxformer.hub.fields import Computed, ConfigMap, Number, Value, write_activation
from jaxformer.hub.flax_format import Difference, FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import SequenceClassificationTask, Task
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import VisionConfig
from jaxformer.zoo.common.basics import fused_gate
from jaxformer.zoo.common.vit_like import (
    ATTENTION,
    ATTENTION_MODULES,
    BACKBONE,
    FIELDS,
    LAYOUTS,
    ONE_TOKEN,
    QKV_BIAS,
    module_names,
    names,
    vit,
)


def _read_feed_forward(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the feed-forward layer; SwiGLU has two thirds of the width, as a multiple of 8."""
    width = int(hf_config.number("hidden_size", 768) * hf_config.number("mlp_ratio", 4))
    swiglu = hf_config.take("use_swiglu_ffn", False)
    if not swiglu:
        return {"mlp_dim": width, "feed_forward.gated": False}
    width = (int(width * 2 / 3) + 7) // 8 * 8
    return {"mlp_dim": width, "feed_forward.gated": True, "feed_forward.activation": "silu"}


def _write_feed_forward(config: VisionConfig) -> dict[str, Any]:
    # The nearest integer ratio; `describe` checks that it gives the width.
    own = config.feed_forward
    ratio = config.mlp_dim / config.model_dim * (1.5 if own.gated else 1)
    return {
        "mlp_ratio": round(ratio),
        "use_swiglu_ffn": own.gated,
        "hidden_act": "gelu" if own.gated else write_activation(own.activation),
    }


_FIELDS = (
    *FIELDS,
    QKV_BIAS,
    ONE_TOKEN,
    Computed(_read_feed_forward, _write_feed_forward),
    Number("residual.layer_scale", "layerscale_value", 1.0),
    Value("mask_token", "use_mask_token", True),
)
_BLOCK = {
    **ATTENTION,
    "norms.0": "norm1",
    "scales.0": "layer_scale1.lambda1",
    "norms.1": "norm2",
    "scales.1": "layer_scale2.lambda1",
}


def _weight_map(config: VisionConfig) -> WeightMap:
    """The names of the tensors; SwiGLU's gate and first layer are one tensor."""
    up, down = (f"sublayers.1.{part}" for part in ("up", "down"))
    if not config.feed_forward.gated:
        return WeightMap(
            names("dinov2", _BLOCK | {up: "mlp.fc1", down: "mlp.fc2"}), layouts=LAYOUTS
        )
    joined = fused_gate("dinov2.encoder.layer.{}.mlp.weights_in")
    own = names("dinov2", _BLOCK | {down: "mlp.weights_out"})
    return WeightMap(own, fused=(joined,), layouts=LAYOUTS)


FORMATS = (
    ModelFormat(
        model_type="dinov2",
        config_map=ConfigMap(partial(vit, pooler=None, interpolate_positions=True), _FIELDS),
        weight_map=_weight_map,
        architectures=(
            Architecture(
                "Dinov2ForImageClassification", SequenceClassificationTask("first_and_mean")
            ),
            Architecture("Dinov2Model", Task()),
        ),
        prefix="dinov2.",
        aliases=module_names("dinov2.", ATTENTION_MODULES),
        flax=FlaxFormat(
            differences=(
                Difference("layerscale_value", "it applies the scale two more times", same=(1.0,)),
            )
        ),
        defaults={"patch_size": 14, "layer_norm_eps": 1e-6},
        harmless=(*BACKBONE, "apply_layernorm", "intermediate_size", "pooler_*"),
    ),
)
