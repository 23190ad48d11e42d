"""The architecture families, built from `nn`."""

from jaxformer.models.build import FAMILIES, ModelConfig, build_model
from jaxformer.models.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    VisionConfig,
)
from jaxformer.models.decoder import Decoder
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.heads.base import Head, LossOptions, ModelOutput
from jaxformer.models.heads.labels import (
    Classification,
    Dense,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.poolers import AttentionPooler, NormPooler, Pooler
from jaxformer.models.heads.projection import Projection
from jaxformer.models.heads.vocabulary import LanguageModel, MaskedLanguageModel
from jaxformer.models.model import Model
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.models.vision import Vision

__all__ = [
    "FAMILIES",
    "AbstractModel",
    "AttentionPooler",
    "Classification",
    "Decoder",
    "DecoderConfig",
    "Dense",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Head",
    "LanguageModel",
    "LossOptions",
    "MaskedLanguageModel",
    "Model",
    "ModelConfig",
    "ModelOutput",
    "NormPooler",
    "Parameters",
    "Pooler",
    "Projection",
    "Regression",
    "Span",
    "TokenClassification",
    "Vision",
    "VisionConfig",
    "build_model",
]
