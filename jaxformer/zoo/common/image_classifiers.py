"""Image classifiers stored as a dual encoder without its text tower (SigLIP, CLIP)."""

from dataclasses import replace
from functools import partial

from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, Formats, ModelFormat
from jaxformer.hub.tasks.classes import SequenceClassificationTask
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import VisionConfig
from jaxformer.models.model import ModelConfig
from jaxformer.zoo.common.encoders import PartAlone

_DROPPED_TENSORS = ("text_model.*", "*_projection.*", "logit_scale", "logit_bias")
"""The tensors of a dual encoder that its image classifier leaves out, as in transformers."""


def with_image_classifier(model_format: ModelFormat, name: str) -> ModelFormat:
    """Adds the image classifier to the classes of a dual encoder.

    It reads the mean of the states of the patches. Config.json describes both towers, of which
    this class has one.
    """
    architecture = Architecture(name, SequenceClassificationTask("mean"))
    image = model_format.sections["image"]
    inner = image.model_format

    def weight_map(config: ModelConfig) -> WeightMap:
        tower = inner.weight_map(config)
        return replace(tower, names={**tower.names, "heads.label.output": "classifier"})

    classifier = replace(
        model_format,
        config_map=PartAlone(lambda image: replace(image, heads=()), (), {"image": image}),
        weight_map=weight_map,
        architectures=(architecture,),
        prefix=inner.prefix,
        aliases=inner.aliases,
        buffers=(*inner.buffers, *_DROPPED_TENSORS),
        copies=inner.copies,
        # Fields that describe the texts and how they are compared.
        harmless=(*model_format.harmless, "text_config*", "logit_*", "projection_dim", "vision_*"),
        sections={},
    )
    return replace(
        model_format,
        architectures=(*model_format.architectures, architecture),
        bind=partial(_bind, classifier=classifier),
    )


def _bind(
    model_format: ModelFormat,
    hf_config: HFConfig,
    formats: Formats,
    config: ModelConfig | None,
    classifier: ModelFormat,
) -> ModelFormat:
    """Returns the classifier's format if config.json names it or our model reads only images."""
    (architecture,) = classifier.architectures
    named = (hf_config.take("architectures", None) or [""])[0]
    one = named == architecture.name if config is None else isinstance(config, VisionConfig)
    return classifier if one else model_format
