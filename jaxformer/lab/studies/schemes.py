"""The positional schemes of the extrapolation study, sized for training and testing."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from jaxformer.errors import ArgumentError, did_you_mean
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
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.rope_scaling import LinearScaling, YaRN

THETA = 10_000.0


class Scheme(NamedTuple):
    """A positional scheme, trained at one length and tested at others."""

    title: str
    """The name in tables and figures."""
    trained: Callable[[int, int], Position]
    """Returns the scheme in training, from the lengths of a training row and of the longest test
    row.
    """
    stretched: Callable[[Position, float, int], Position] = lambda position, *_: position
    """Returns the scheme in testing, from the scheme in training, the multiple of the training
    length and the training length.
    """
    trained_as: str | None = None
    """The scheme whose trained model is tested; None trains a separate model."""


def _t5(length: int, longest: int) -> Position:
    # A quarter of the training length, as in ALiBi's experiments: all buckets are trained.
    distance = max(8, length // 4)
    return T5Bias(min(32, distance), distance, bidirectional=False)


def _linear(position: RoPE, factor: float, length: int) -> Position:
    return replace(position, scaling=LinearScaling(factor=factor))


def _yarn(position: RoPE, factor: float, length: int) -> Position:
    return replace(position, scaling=YaRN(factor=factor, original_max_length=length))


def _rope(length: int, longest: int) -> Position:
    return RoPE(theta=THETA)


SCHEMES = {
    "none": Scheme("NoPE", lambda length, longest: NoPosition()),
    "integer": Scheme("integer", lambda length, longest: Integer(max_length=longest)),
    "binary": Scheme(
        "binary", lambda length, longest: Binary(num_bits=max(1, (longest - 1).bit_length()))
    ),
    "sinusoidal": Scheme("sinusoidal", lambda length, longest: Sinusoidal(theta=THETA)),
    "learned": Scheme("learned", lambda length, longest: Learned(max_length=length)),
    "t5": Scheme("T5 bias", _t5),
    "alibi": Scheme("ALiBi", lambda length, longest: ALiBi()),
    "rope": Scheme("RoPE", _rope),
    "rope-linear": Scheme("RoPE (linear)", _rope, _linear, trained_as="rope"),
    "rope-yarn": Scheme("RoPE (YaRN)", _rope, _yarn, trained_as="rope"),
}
"""The schemes by name. Integer and binary codes are sized for the longest test, and training sees
only the first positions; the table of learned positions has no rows beyond the training length. The
last two stretch the frequencies of a trained RoPE by the multiple of the training length.
"""


def chosen(text: str, names: Iterable[str], option: str) -> tuple[str, ...]:
    """Parses a comma-separated list of names, or "all"; returns them in canonical order."""
    names = tuple(names)
    if text.strip().lower() == "all":
        return names
    wanted = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in names:
            advice = did_you_mean(name, names) or f"; choose all, or some of {', '.join(names)}"
            raise ArgumentError(f"{option} {name!r}: unknown name{advice}")
    if not wanted:
        raise ArgumentError(f"{option} {text!r}: must be all, or some of {', '.join(names)}")
    return tuple(name for name in names if name in wanted)


def models(schemes: Sequence[str]) -> dict[str, list[str]]:
    """Returns the schemes to test with each trained model."""
    found: dict[str, list[str]] = {}
    for name in schemes:
        found.setdefault(SCHEMES[name].trained_as or name, []).append(name)
    return found
