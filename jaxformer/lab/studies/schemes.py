"""The positional schemes of a study of lengths, each sized for its training and its tests."""

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
    """Its name in tables and pictures."""
    trained: Callable[[int, int], Position]
    """The scheme in training, from the tokens of a training row and of the longest test row."""
    stretched: Callable[[Position, float, int], Position] = lambda position, *_: position
    """The scheme at a multiple of the training length, from that in training, the multiple and the
    training length."""
    trained_as: str | None = None
    """The scheme whose trained model it tests; None: its own."""


def _t5(length: int, longest: int) -> Position:
    # A quarter of the training length, as in ALiBi's experiments: all buckets are trained.
    del longest
    distance = max(8, length // 4)
    return T5Bias(min(32, distance), distance, bidirectional=False)


def _linear(position: RoPE, factor: float, length: int) -> Position:
    del length
    return replace(position, scaling=LinearScaling(factor=factor))


def _yarn(position: RoPE, factor: float, length: int) -> Position:
    return replace(position, scaling=YaRN(factor=factor, original_max_length=length))


def _rope(length: int, longest: int) -> Position:
    del length, longest
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
"""The schemes by name. Integer and binary codes are sized for the longest test, of which training
sees the first; the table of learned positions has no row beyond the training length. The last two
stretch the frequencies of a trained RoPE by the multiple of the training length."""


def chosen(text: str, names: Iterable[str], option: str) -> tuple[str, ...]:
    """Returns which names a list between commas has, in the order of all; "all" has all."""
    names = tuple(names)
    if text.strip().lower() == "all":
        return names
    wanted = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in names:
            advice = did_you_mean(name, names) or f"; choose all, or some of {', '.join(names)}"
            raise ArgumentError(f"{option} {name!r}: there is none of this name{advice}")
    if not wanted:
        raise ArgumentError(f"{option} {text!r}: must be all, or some of {', '.join(names)}")
    return tuple(name for name in names if name in wanted)


def models(schemes: Sequence[str]) -> dict[str, list[str]]:
    """Returns the schemes that are tested with each trained model."""
    found: dict[str, list[str]] = {}
    for name in schemes:
        found.setdefault(SCHEMES[name].trained_as or name, []).append(name)
    return found
