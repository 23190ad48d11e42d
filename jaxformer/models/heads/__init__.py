"""Heads: the outputs of a model, computed from its hidden states."""

from jaxformer.models.heads.autoencoder import MaskedAutoencoder
from jaxformer.models.heads.base import Head, HeadModule, LossOptions, ModelOutput, Predictions
from jaxformer.models.heads.choices import MultipleChoice
from jaxformer.models.heads.dense import Dense, ResidualMLP
from jaxformer.models.heads.labels import (
    Classification,
    MultiLabel,
    Regression,
    TokenClassification,
)
from jaxformer.models.heads.patches import MaskedPixels, VisualTokens
from jaxformer.models.heads.poolers import AttentionPooler, NormPooler, Pooler, PrefixPooler
from jaxformer.models.heads.projection import Projection
from jaxformer.models.heads.quantized import QuantizedFrames
from jaxformer.models.heads.span import Span
from jaxformer.models.heads.transcript import CTC
from jaxformer.models.heads.vocabulary import LanguageModel, MaskedLanguageModel

__all__ = [
    "CTC",
    "AttentionPooler",
    "Classification",
    "Dense",
    "Head",
    "HeadModule",
    "LanguageModel",
    "LossOptions",
    "MaskedAutoencoder",
    "MaskedLanguageModel",
    "MaskedPixels",
    "ModelOutput",
    "MultiLabel",
    "MultipleChoice",
    "NormPooler",
    "Pooler",
    "Predictions",
    "PrefixPooler",
    "Projection",
    "QuantizedFrames",
    "Regression",
    "ResidualMLP",
    "Span",
    "TokenClassification",
    "VisualTokens",
]
