"""Positional schemes, and the functions they are made of."""

from jaxformer.functional.positions.base import Bias, NoPosition, Position
from jaxformer.functional.positions.patch_bias import PatchBias
from jaxformer.functional.positions.rope_scaling import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    NoScaling,
    Scaling,
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

__all__ = [
    "ALiBi",
    "Bias",
    "Binary",
    "DynamicNTK",
    "Integer",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPE",
    "NoPosition",
    "NoScaling",
    "PatchBias",
    "Position",
    "RoPE",
    "Scaling",
    "Sinusoidal",
    "Sinusoidal2D",
    "T5Bias",
    "YaRN",
]
