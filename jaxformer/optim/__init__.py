"""Optimizers, learning-rate schedules, and which parameters are trained."""

from jaxformer.optim.optimizers import LAMB, SGD, Adafactor, AdamW, Lion, Muon, Optimizer
from jaxformer.optim.schedules import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    Schedule,
    WarmupStableDecay,
)

__all__ = [
    "LAMB",
    "SGD",
    "Adafactor",
    "AdamW",
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "Linear",
    "Lion",
    "Muon",
    "Optimizer",
    "Schedule",
    "WarmupStableDecay",
]
