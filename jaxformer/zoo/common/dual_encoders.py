"""Shared parts of the files of dual encoders."""

from dataclasses import replace
from typing import Any

from jaxformer.hub.fields import Computed, Number
from jaxformer.hub.model_format import ModelFormat, Section
from jaxformer.hub.parts import with_parts
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import Projection
from jaxformer.zoo.common.basics import of_head

LOGIT_SCALE = Number("logit_scale", "logit_scale_init_value", 2.6592)
OWN_NAMES = {"logit_scale": "logit_scale", "logit_bias": "logit_bias"}


_WIDTH = of_head(Projection, {"width": "projection_dim"})
# The width is read in the sections of both towers, where it replaces their own.
PROJECTION_WIDTH = Computed(lambda hf_config: {}, lambda config: _WIDTH.write(config.image))


def text_part(model_format: ModelFormat, **others: Any) -> Section:
    """Returns the part that reads texts, of a system's first class; `others` are fields of it."""
    architecture = model_format.architectures[0]
    return Section("text_config", "text_model.", model_format, architecture, **others)


def image_part(model_format: ModelFormat, **others: Any) -> Section:
    """Returns the part that reads images, see `text_part`."""
    architecture, fields = model_format.architectures[0], {"reads_text": False} | others
    return Section("vision_config", "vision_model.", model_format, architecture, **fields)


def dual_encoder(
    model_format: ModelFormat, text: Section, image: Section, own: WeightMap
) -> ModelFormat:
    """Returns the format of a dual encoder with these parts."""
    # The scale is learned, so the file's value is used.
    model_format = replace(model_format, fitted_fields=("logit_scale",))
    return with_parts(model_format, {"text": text, "image": image}, own)
