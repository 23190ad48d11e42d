"""Compares positional schemes: tiny decoders that differ in nothing else.

Train each of them, then draw them in one picture::

    for scheme in none integer binary sinusoidal learned rope alibi t5; do
        python train.py configs/tiny_positions.py:$scheme
    done
    python -m jaxformer compare runs/tiny_positions-* --out positions.png

`rope` is the default if no scheme is named.
"""

from dataclasses import replace
from pathlib import Path

from jaxformer.config import Config, load_config
from jaxformer.errors import ConfigError
from jaxformer.functional import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    NoPosition,
    RoPE,
    Sinusoidal,
    T5Bias,
)

LENGTH = 256

SCHEMES = {
    "none": NoPosition(),
    "integer": Integer(max_length=LENGTH),
    "binary": Binary(num_bits=8),
    "sinusoidal": Sinusoidal(theta=10_000.0),
    "learned": Learned(max_length=LENGTH),
    "rope": RoPE(theta=10_000.0),
    "alibi": ALiBi(),
    "t5": T5Bias(num_buckets=32, max_distance=128, bidirectional=False),
}


def get_config(scheme: str = "rope") -> Config:
    if scheme not in SCHEMES:
        raise ConfigError(f"positional scheme {scheme!r}: choose one of {', '.join(SCHEMES)}")
    base = load_config(str(Path(__file__).with_name("tiny_decoder.py")))
    return replace(
        base,
        model=replace(base.model, position=SCHEMES[scheme]),
        data=replace(base.data, sequence_length=LENGTH),
        train=replace(base.train, steps=400, eval_interval=50, sample_tokens=0),
    )
