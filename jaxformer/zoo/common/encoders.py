"""Encoders that are described as a part or a variant of another model."""

from dataclasses import fields

from jaxformer.models import EncoderConfig
from jaxformer.models.model import TransformerModelConfig
from jaxformer.nn.config import TextConfig


def standalone_encoder(config: TextConfig) -> EncoderConfig:
    """Returns the encoder with the layers of another text model, without heads."""
    names = {f.name for kind in (TextConfig, TransformerModelConfig) for f in fields(kind)}
    shared = {name: getattr(config, name) for name in names - {"heads"}}
    return EncoderConfig(**shared, heads=())
