"""Vision-text dual encoders: any model of images with any encoder of texts (CLIP-Italian)."""

from dataclasses import replace

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.hub.describe import describe
from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, Formats, ModelFormat, section
from jaxformer.hub.tasks.classes import EndTokenTask, Task
from jaxformer.hub.tasks.dual_encoders import (
    ContrastiveTask,
    EndTokenEmbeddingTask,
    PooledEmbeddingTask,
)
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DualEncoderConfig
from jaxformer.models.model import ModelConfig
from jaxformer.zoo.common.dual_encoders import (
    LOGIT_SCALE,
    OWN_NAMES,
    PROJECTION_WIDTH,
    dual_encoder,
    image_part,
    text_part,
)

_TASKS = {
    "text_config": {Task: PooledEmbeddingTask(), EndTokenTask: EndTokenEmbeddingTask()},
    "vision_config": {Task: PooledEmbeddingTask("image_embeds")},
}
"""Section of config.json -> task of a class that pools -> that of a tower, which projects."""


def _towers(formats: Formats, name: str) -> dict[str, ModelFormat]:
    """Returns the systems that may be a tower, each with its class without a head."""
    found = {}
    for kind, model_format in formats.items():
        for architecture in model_format.architectures:
            task = _TASKS[name].get(type(architecture.task))
            if task is not None:
                tower = replace(architecture, task=task, prefix="")
                found[kind] = replace(model_format, architectures=(tower,))
    return found


def _tower(
    hf_config: HFConfig, formats: Formats, name: str, config: ModelConfig | None
) -> ModelFormat:
    """Returns the tower's system in a section of config.json, or one that can express our model."""
    towers = _towers(formats, name)
    kind = section(hf_config, name).get("model_type")
    if kind is None and config is not None:
        width = {"projection_dim": next(iter(config.heads)).width}
        kind = describe(config, towers.values(), width).model_format.model_type
    if kind not in towers:
        raise ConfigError(
            f"{hf_config.path}: {name}: model_type = {kind!r}: must be a model with a pooled state,"
            f" one of {', '.join(sorted(towers))}{did_you_mean(kind, towers)}"
        )
    return towers[kind]


def _bind(
    model_format: ModelFormat,
    hf_config: HFConfig,
    formats: Formats,
    config: DualEncoderConfig | None,
) -> ModelFormat:
    """Returns the format with the systems of the towers that config.json names."""
    text, image = (None, None) if config is None else (config.text, config.image)
    texts = _tower(hf_config, formats, "text_config", text)
    images = _tower(hf_config, formats, "vision_config", image)
    shared = ("projection_dim",)
    return dual_encoder(
        model_format,
        text_part(texts, shared=shared, projection="text_projection"),
        image_part(images, shared=shared, projection="visual_projection"),
        WeightMap(OWN_NAMES),
    )


def _build(text: ModelConfig, image: ModelConfig, **fields: float) -> DualEncoderConfig:
    """Builds both towers, which must have a pooled state."""
    reads_end = [head.pooling for head in text.heads] == ["last"]
    if not reads_end and getattr(text, "pooler", None) is None:
        raise ConfigError("text_config: the model must have a pooled state, as BERT and CLIP do")
    if image.pooler is None and not image.class_token:
        raise ConfigError("vision_config: the model must have a pooled state, as ViT and CLIP do")
    if image.position.any_grid:
        raise ConfigError("vision_config: the model must read images of one shape, as ViT does")
    return DualEncoderConfig(text, image, **fields)


FORMATS = (
    ModelFormat(
        model_type="vision-text-dual-encoder",
        config_map=ConfigMap(_build, (LOGIT_SCALE, PROJECTION_WIDTH)),
        weight_map=lambda _: WeightMap({}),
        architectures=(Architecture("VisionTextDualEncoderModel", ContrastiveTask()),),
        harmless=("projection_dim",),
        defaults={"projection_dim": 512},
        bind=_bind,
    ),
)
