"""Positional schemes and their functions."""

from jaxformer.functional.positions.base import NoPosition, Position
from jaxformer.functional.positions.bias import Bias
from jaxformer.functional.positions.distances import DistanceEmbedding
from jaxformer.functional.positions.patch_bias import PatchBias
from jaxformer.functional.positions.patch_rope import RoPE2D
from jaxformer.functional.positions.patch_table import Learned2D
from jaxformer.functional.positions.rope import NoScaling, Scaling
from jaxformer.functional.positions.rope_scaling import (
    DynamicNTK,
    GivenFrequencies,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    YaRN,
)
from jaxformer.functional.positions.schemes import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    RoPE,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
)
from jaxformer.functional.positions.sparse import T5GlobalBias

__all__ = [
    "ALiBi",
    "Bias",
    "Binary",
    "DistanceEmbedding",
    "DynamicNTK",
    "GivenFrequencies",
    "Integer",
    "Learned",
    "Learned2D",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPE",
    "NoPosition",
    "NoScaling",
    "PatchBias",
    "Position",
    "RoPE",
    "RoPE2D",
    "Scaling",
    "Sinusoidal",
    "Sinusoidal2D",
    "T5Bias",
    "T5GlobalBias",
    "YaRN",
]
