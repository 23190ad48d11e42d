"""The model families, built from `nn`."""

from jaxformer.models.composite import Composite, CompositeConfig
from jaxformer.models.decoder import Decoder, DecoderConfig
from jaxformer.models.dual_encoder import DualEncoder, DualEncoderConfig
from jaxformer.models.encoder import Encoder, EncoderConfig
from jaxformer.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from jaxformer.models.heads.autoencoder import MaskedAutoencoder
from jaxformer.models.heads.base import Head, LossFunction, LossOptions, ModelOutput
from jaxformer.models.heads.choices import MultipleChoice
from jaxformer.models.heads.contrastive import Contrastive, SigmoidContrastive
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
from jaxformer.models.model import Model, ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.models.spectrogram import Spectrogram, SpectrogramConfig
from jaxformer.models.spectrogram_patches import SpectrogramPatchesConfig
from jaxformer.models.vision import Vision, VisionConfig
from jaxformer.models.waveform import Waveform, WaveformConfig

__all__ = [
    "CTC",
    "AbstractModel",
    "AttentionPooler",
    "Classification",
    "Composite",
    "CompositeConfig",
    "Contrastive",
    "Decoder",
    "DecoderConfig",
    "Dense",
    "DualEncoder",
    "DualEncoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Head",
    "LanguageModel",
    "LossFunction",
    "LossOptions",
    "MaskedAutoencoder",
    "MaskedLanguageModel",
    "MaskedPixels",
    "Model",
    "ModelConfig",
    "ModelOutput",
    "MultiLabel",
    "MultipleChoice",
    "NormPooler",
    "Parameters",
    "Pooler",
    "PrefixPooler",
    "Projection",
    "QuantizedFrames",
    "Regression",
    "ResidualMLP",
    "SigmoidContrastive",
    "Span",
    "Spectrogram",
    "SpectrogramConfig",
    "SpectrogramPatchesConfig",
    "TokenClassification",
    "Vision",
    "VisionConfig",
    "VisualTokens",
    "Waveform",
    "WaveformConfig",
]
