"""From a configuration to the family it describes."""

import jax

from jaxformer.models.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, VisionConfig
from jaxformer.models.decoder import Decoder
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.model import Model
from jaxformer.models.vision import Vision

ModelConfig = DecoderConfig | EncoderConfig | EncoderDecoderConfig | VisionConfig

FAMILIES: dict[type, type[Model]] = {
    DecoderConfig: Decoder,
    EncoderConfig: Encoder,
    EncoderDecoderConfig: EncoderDecoder,
    VisionConfig: Vision,
}


def build_model(key: jax.Array, config: ModelConfig) -> Model:
    """A model of the family that the config's type names, with fresh parameters."""
    return FAMILIES[type(config)](key, config)


def predicts_next_token(config: ModelConfig) -> bool:
    """Whether a model has the head that continues a text."""
    return "language_model" in [head.name for head in getattr(config, "heads", ())]
