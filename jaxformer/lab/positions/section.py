"""The settings of the report on positions, and what a section of it holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxformer.checks import (
    POSITIVE,
    above,
    at_least,
    between,
    check_field,
    check_fields,
    check_types,
    multiple_of,
)
from jaxformer.errors import ConfigError, did_you_mean

SCHEMES = ("none", "integer", "binary", "sinusoidal", "learned", "rope", "alibi", "t5")


@dataclass(frozen=True)
class PositionsConfig:
    """What the report on positions shows, and at which sizes."""

    schemes: tuple[str, ...] = SCHEMES
    """The positional schemes to show."""
    length: int = 50
    """Positions (T) of the codes and matrices that are drawn."""
    model_dim: int = 128
    """Width of the codes (D); even, and a multiple of num_heads."""
    num_heads: int = 8
    """Heads (N) of ALiBi, T5's table and the scores."""
    head_dim: int = 128
    """Channels of a head that RoPE rotates; a multiple of 4."""
    theta: float = 10_000.0
    """Base of the sinusoids' and RoPE's frequencies."""
    bases: tuple[float, ...] = (500.0, 10_000.0, 500_000.0)
    """Bases whose long-term decay is compared with that of theta."""
    num_bits: int = 5
    """Digits of the binary code."""
    num_buckets: int = 32
    """Buckets of T5's bias, for both directions together."""
    max_distance: int = 128
    """Distance from which all keys share T5's last bucket."""
    trained_length: int = 2048
    """The length that RoPE is stretched from."""
    factor: float = 8.0
    """The factor that it is stretched by."""
    tolerance: float = 0.1
    """How far apart two sinusoidal codes may be, relative to their length, to count as equal."""
    limit: int = 1_000_000
    """The largest distance at which equal codes are looked for."""
    seed: int = 0
    """Seed of the random tables, contents and projections."""

    def __post_init__(self):
        check_types(self)
        for name in self.schemes:
            if name not in SCHEMES:
                advice = did_you_mean(name, SCHEMES) or f"; choose from {', '.join(SCHEMES)}"
                raise ConfigError(f"schemes: {name!r} is not a positional scheme{advice}")
        check_field(self, "schemes", bool(self.schemes), f"some of {', '.join(SCHEMES)}")
        check_fields(
            self,
            length=between(2, 1000),
            model_dim=multiple_of(2),
            num_heads=between(1, 64),
            head_dim=multiple_of(4),
            theta=above(1),
            num_bits=between(1, 12),
            num_buckets=multiple_of(4),
            trained_length=at_least(16),
            factor=above(1),
            tolerance=POSITIVE,
            limit=between(1, 2**26),
            seed=between(0, 2**31 - 1),
        )
        wanted = f"a multiple of num_heads = {self.num_heads}"
        check_field(self, "model_dim", self.model_dim % self.num_heads == 0, wanted)
        right = all(map(above(1).allows, self.bases))
        check_field(self, "bases", right, "finite numbers above 1")
        exact = self.num_buckets // 2
        wanted = f"an integer above {exact}, the exact buckets of one direction"
        check_field(self, "max_distance", self.max_distance > exact, wanted)


class Number(NamedTuple):
    """A number of the report."""

    scheme: str
    """The scheme that it is about."""
    quantity: str
    """What was computed."""
    setting: str
    """At which settings."""
    value: float | int | str
    """The result: a number or a text."""


class Picture(NamedTuple):
    """A picture of the report."""

    name: str
    """The name of its file, without the ending."""
    figure: Any
    """A matplotlib figure."""
    caption: str
    """What it shows and what to see in it."""


@dataclass(frozen=True)
class Section:
    """A section of the report."""

    title: str
    text: Sequence[str]
    """Paragraphs before the pictures."""
    pictures: Sequence[Picture] = ()
    numbers: Sequence[Number] = field(default=())
