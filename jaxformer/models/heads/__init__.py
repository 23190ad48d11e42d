"""Heads: the outputs of a model, computed from its hidden states."""

from jaxformer.models.heads.base import Head, HeadModule, LossOptions, ModelOutput, Predictions
from jaxformer.models.heads.dense import Dense
from jaxformer.models.heads.labels import (
    Classification,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.patches import MaskedPixels, VisualTokens
from jaxformer.models.heads.poolers import AttentionPooler, NormPooler, Pooler
from jaxformer.models.heads.projection import Projection
from jaxformer.models.heads.vocabulary import LanguageModel, MaskedLanguageModel

__all__ = [
    "AttentionPooler",
    "Classification",
    "Dense",
    "Head",
    "HeadModule",
    "LanguageModel",
    "LossOptions",
    "MaskedLanguageModel",
    "MaskedPixels",
    "ModelOutput",
    "NormPooler",
    "Pooler",
    "Predictions",
    "Projection",
    "Regression",
    "Span",
    "TokenClassification",
    "VisualTokens",
]
