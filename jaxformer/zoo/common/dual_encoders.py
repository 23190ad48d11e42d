"""What the files of all dual encoders share."""

from dataclasses import replace
from typing import Any

from jaxformer.hub.fields import Computed, Number
from jaxformer.hub.model_format import Architecture, ModelFormat, Section
from jaxformer.hub.parts import with_parts
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DualEncoderConfig, Projection

LOGIT_SCALE = Number("logit_scale", "logit_scale_init_value", 2.6592)
OWN_NAMES = {"logit_scale": "logit_scale", "logit_bias": "logit_bias"}


def _write_width(config: DualEncoderConfig) -> dict[str, Any]:
    widths = [head.width for head in config.image.heads if isinstance(head, Projection)]
    return {"projection_dim": widths[0]} if widths else {}


# The width is read in the sections of both towers, where it replaces their own.
PROJECTION_WIDTH = Computed(lambda hf_config: {}, _write_width)


def text_part(model_format: ModelFormat, architecture: Architecture, **others: Any) -> Section:
    """Returns the part that reads texts; `others` are fields of `Section`."""
    return Section("text_config", "text_model.", model_format, architecture, **others)


def image_part(model_format: ModelFormat, architecture: Architecture, **others: Any) -> Section:
    """Returns the part that reads images; `others` are fields of `Section`."""
    fields = {"reads_text": False} | others
    return Section("vision_config", "vision_model.", model_format, architecture, **fields)


def dual_encoder(
    model_format: ModelFormat, text: Section, image: Section, own: WeightMap
) -> ModelFormat:
    """Returns the format of a dual encoder with these parts."""
    # It is learned, so that of the file counts.
    model_format = replace(model_format, fitted_fields=("logit_scale",))
    return with_parts(model_format, {"text": text, "image": image}, own)
