"""The settings and the sections of the report on positions."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    """The settings of the report on positions."""

    schemes: tuple[str, ...] = SCHEMES
    """The positional schemes to show."""
    length: int = 50
    """Number of positions (T) in the figures."""
    model_dim: int = 128
    """Width of the codes (D), even and a multiple of num_heads."""
    num_heads: int = 8
    """Number of heads (N) of ALiBi, T5's table and the scores."""
    head_dim: int = 128
    """Channels per head that RoPE rotates, a multiple of 4."""
    theta: float = 10_000.0
    """Base of the sinusoids' and RoPE's frequencies."""
    bases: tuple[float, ...] = (500.0, 10_000.0, 500_000.0)
    """Bases whose long-term decay is compared with that of theta."""
    num_bits: int = 5
    """Number of digits of the binary code."""
    num_buckets: int = 32
    """Number of buckets of T5's bias, for both directions together."""
    max_distance: int = 128
    """Distance from which all keys share T5's last bucket."""
    trained_length: int = 2048
    """The length that RoPE is stretched from."""
    factor: float = 8.0
    """The factor that RoPE is stretched by."""
    tolerance: float = 0.1
    """Relative distance up to which two sinusoidal codes count as equal."""
    limit: int = 1_000_000
    """Maximum distance to search for equal codes."""
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

    @property
    def all_bases(self) -> list[float]:
        """The bases to compare, `theta` included."""
        return sorted({self.theta, *self.bases})


class Number(NamedTuple):
    """A number in the report."""

    scheme: str
    quantity: str
    setting: str
    value: float | int | str


class Picture(NamedTuple):
    """A figure in the report."""

    name: str
    """The file name, without extension."""
    figure: Any
    """A matplotlib figure."""
    caption: str


@dataclass(frozen=True)
class Section:
    """A section of the report."""

    title: str
    text: Sequence[str]
    """Paragraphs before the figures."""
    pictures: Sequence[Picture]
    numbers: Sequence[Number]
