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
from jaxformer.models.family import Family
from jaxformer.models.heads import Head, LossOptions, States
from jaxformer.models.label_heads import (
    Classification,
    Dense,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.parameters import Parameters, Template
from jaxformer.models.poolers import AttentionPooler, NormPooler, Pooler
from jaxformer.models.projection import Projection
from jaxformer.models.vision import Vision
from jaxformer.models.vocabulary_heads import LanguageModel, MaskedLanguageModel

__all__ = [
    "FAMILIES",
    "AttentionPooler",
    "Classification",
    "Decoder",
    "DecoderConfig",
    "Dense",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Family",
    "Head",
    "LanguageModel",
    "LossOptions",
    "MaskedLanguageModel",
    "ModelConfig",
    "NormPooler",
    "Parameters",
    "Pooler",
    "Projection",
    "Regression",
    "Span",
    "States",
    "Template",
    "TokenClassification",
    "Vision",
    "VisionConfig",
    "build_model",
]
