"""The architecture families, built from `nn`."""

from jaxformer.models.config import DecoderConfig
from jaxformer.models.decoder import Decoder, Head, logits
from jaxformer.models.parameters import Parameters, Template

__all__ = ["Decoder", "DecoderConfig", "Head", "Parameters", "Template", "logits"]
