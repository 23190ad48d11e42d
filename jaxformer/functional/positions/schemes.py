"""The positional schemes, small frozen objects with the interface `Position`."""

import abc
import math
from dataclasses import dataclass, field, replace
from typing import Literal

import jax
import jax.numpy as jnp

from jaxformer.checks import (
    POSITIVE,
    above,
    at_least,
    between,
    check_field,
    check_fields,
    optional,
)
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import assert_axes, assert_integers
from jaxformer.functional.patches import resize_positions
from jaxformer.functional.positions.absolute import (
    binary_code,
    integer_code,
    learned_code,
    sinusoidal_code,
    sinusoidal_grid_code,
)
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.bias import Bias
from jaxformer.functional.positions.relative import (
    alibi_bias,
    alibi_slopes,
    rounded_alibi_bias,
    t5_bias,
)
from jaxformer.functional.positions.rope import NoScaling, Scaling, apply_rope

_LENGTH = between(1, 2**31 - 1)  # positions are int32


@dataclass(frozen=True)
class Integer(Position):
    """Adds the index, `p / max_length`, to the first channel.

    It uses only one channel, since layer norm removes a shift common to all channels.
    """

    max_length: int = field()  # field(): the inherited None is not the default.
    """Longest sequence in tokens; the index is divided by it."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, max_length=_LENGTH)

    def embed(self, x, positions, table=None):
        del table
        return _add_to_first_channels(x, integer_code(positions, max_length=self.max_length))


@dataclass(frozen=True)
class Binary(Position):
    """Adds the binary digits of the index, least significant first, to the first channels.

    The digits are 0 or 1. At least one channel must be free, since layer norm removes ones in every
    channel.
    """

    num_bits: int
    """Number of digits: sequences have at most 2^num_bits tokens."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, num_bits=between(1, 31))

    @property
    def max_length(self) -> int:
        """Number of distinct codes."""
        return 2**self.num_bits

    def embed(self, x, positions, table=None):
        del table
        return _add_to_first_channels(x, binary_code(positions, num_bits=self.num_bits))

    def validate_sizes(self, *, model_dim, head_dim):
        del head_dim
        check_field(self, "num_bits", self.num_bits < model_dim, f"below model_dim = {model_dim}")

    def _remedy(self, length):
        return f"set num_bits to at least {math.ceil(math.log2(length))}"


@dataclass(frozen=True)
class Sinusoidal(Position):
    """Adds sines and cosines of the index (Vaswani et al., 2017)."""

    theta: float = 10_000.0
    """Base of the frequencies."""
    layout: Literal["interleaved", "half"] = "interleaved"
    """"interleaved" (sin, cos, sin, ...; the paper) or "half" (all sines, then all cosines)."""
    endpoint: bool = False
    """Whether 1 / theta is the last frequency (M2M-100) or would be the next one."""
    offset: int = 0
    """The index of position 0: 2 in M2M-100, where negative positions (padding) get no code."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, theta=above(1), offset=at_least(0))

    def embed(self, x, positions, table=None):
        del table
        code = sinusoidal_code(
            positions + self.offset,
            model_dim=x.shape[-1],
            theta=self.theta,
            layout=self.layout,
            endpoint=self.endpoint,
        )
        if self.offset:
            code = jnp.where(positions[..., None] < 0, 0.0, code)
        return x + code.astype(x.dtype)

    def validate_sizes(self, *, model_dim, head_dim):
        del head_dim
        if model_dim % 2:
            raise ConfigError(f"model_dim = {model_dim}: must be even for {self}")


class OnGrid(Position, abc.ABC):
    """Base class of schemes for a grid of patches, with `grid` and `prefix`."""

    grid: tuple[int, int]
    prefix: int

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "grid", min(self.grid) >= 1, "rows and columns, at least 1 each")
        check_field(self, "prefix", self.prefix >= 0, "0 or more")

    @property
    def max_length(self) -> int:
        """Number of tokens: the prefix and the patches."""
        return self.prefix + self.grid[0] * self.grid[1]

    def for_grid(self, grid, prefix):
        return replace(self, grid=grid, prefix=prefix)

    def validate_grid(self, grid, prefix):
        wanted = f"{grid}, the rows and columns of patches"
        check_field(self, "grid", self.grid == grid, wanted)
        before = f"{prefix}, the tokens before them" if prefix else "0: there is no class token"
        check_field(self, "prefix", self.prefix == prefix, before)

    def _remedy(self, length):
        return "set grid to the rows and columns of the patches"


@dataclass(frozen=True)
class Sinusoidal2D(OnGrid):
    """Adds sines and cosines of a patch's column and row, half of the channels for each.

    Tokens before the patches get no code. Reference: He et al., Masked Autoencoders, 2021.
    """

    grid: tuple[int, int]
    """Rows and columns of patches, in row-major order."""
    theta: float = 10_000.0
    """Base of the frequencies."""
    prefix: int = 1
    """Number of tokens before the patches: 1 with a class token."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, theta=above(1))

    def embed(self, x, positions, table=None):
        del table
        columns = self.grid[1]
        patch = jnp.maximum(positions - self.prefix, 0)
        code = sinusoidal_grid_code(
            patch // columns, patch % columns, model_dim=x.shape[-1], theta=self.theta
        )
        return x + jnp.where(positions[..., None] < self.prefix, 0.0, code).astype(x.dtype)

    def validate_sizes(self, *, model_dim, head_dim):
        del head_dim
        if model_dim % 4:
            raise ConfigError(f"model_dim = {model_dim}: must be a multiple of 4 for {self}")


@dataclass(frozen=True)
class Learned(Position):
    """Adds a learned vector per position (BERT, GPT-2)."""

    max_length: int = field()  # field(): the inherited None is not the default.
    """The longest sequence in tokens."""
    offset: int = 0
    """Number of rows before that of position 0, which are not trained: 2 in BART and in RoBERTa,
    whose padding is at -1.
    """
    learns: bool = True
    """Whether the table is trained; Pegasus has a fixed sinusoidal table."""
    after_norm: bool = False
    """Whether the vectors are added after the norm of the embeddings, if there is one (decoder of
    Blenderbot small).
    """

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, max_length=_LENGTH, offset=at_least(0))

    def table(self, *, model_dim, num_heads):
        del num_heads
        return (self.offset + self.max_length, model_dim), ("positions", "embed")

    def embed(self, x, positions, table=None):
        assert_axes(x=(x, "... D"), table=(self._required(table), "P D"))
        code = learned_code(table, positions + self.offset)
        if self.offset:
            code = jnp.where(positions[..., None] < 0, jax.lax.stop_gradient(code), code)
        return x + code.astype(x.dtype)

    def for_grid(self, grid, prefix):
        return replace(self, max_length=prefix + grid[0] * grid[1])

    def resized(self, table, old_grid, new_grid, prefix):
        return resize_positions(table, old_grid, new_grid, prefix=prefix)

    def validate_grid(self, grid, prefix):
        # Rows without a patch would never be trained, and resizing could not detect it.
        tokens = prefix + grid[0] * grid[1]
        before = {0: "", 1: "the class token and "}.get(prefix, f"{prefix} tokens and ")
        wanted = f"{tokens}, for {before}{grid[0]} x {grid[1]} patches"
        check_field(self, "max_length", self.max_length == tokens, wanted)
        check_field(self, "offset", self.offset == 0, "0 for patches")


@dataclass(frozen=True)
class RoPE(Position):
    """Rotates queries and keys so that scores depend on distances (Su et al., 2021)."""

    theta: float = 10_000.0
    """Base of the frequencies."""
    fraction: float = 1.0
    """Fraction of a head's channels to rotate: the first int(head_dim * fraction)."""
    layout: Literal["half", "interleaved"] = "half"
    """"half" (channel i with i + R/2; Llama, GPT-NeoX) or "interleaved" (2i with 2i + 1; GPT-J)."""
    scaling: Scaling = NoScaling()
    """Frequency scaling for sequences beyond the trained length."""
    max_length: int | None = field(default=None, kw_only=True)
    """Maximum number of positions, for models with a table of angles (RoFormer); None is unlimited.
    """
    values: bool = field(default=False, kw_only=True)
    """Whether to rotate values like keys (RoFormer's `rotary_value`)."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, max_length=optional(_LENGTH), theta=above(1))
        check_field(self, "fraction", 0 < self.fraction <= 1, "above 0 and at most 1")

    def rotary_dim(self, head_dim: int) -> int:
        """Returns the number of rotating channels of a head."""
        return int(head_dim * self.fraction)

    def rotate(self, query, key, query_positions, key_positions, lengths=None):
        assert_integers(query_positions=query_positions, key_positions=key_positions)
        if lengths is None:
            both = (query_positions, key_positions)
            longest = jnp.maximum(*(jnp.max(each, initial=0) for each in both)) + 1
            return self._rotated(query, key, query_positions, key_positions, longest)
        if self.changes_at(lengths) is None:
            # The frequencies are the same for every length.
            return self._rotated(query, key, query_positions, key_positions, 0)
        query_positions = jnp.broadcast_to(query_positions, query.shape[:2])
        key_positions = jnp.broadcast_to(key_positions, key.shape[:2])
        arrays = query[:, None], key[:, None], query_positions[:, None], key_positions[:, None]
        query, key = jax.vmap(self._rotated)(*arrays, lengths)
        return query[:, 0], key[:, 0]

    def rotate_values(self, value, positions, lengths=None):
        if not self.values:
            return value
        return self.rotate(value, value, positions, positions, lengths)[1]

    def changes_at(self, lengths):
        return self.scaling.changes_at(lengths)

    def _rotated(self, query, key, query_positions, key_positions, length):
        frequencies, attention_factor = self.scaling.frequencies(
            self.theta, self.rotary_dim(query.shape[-1]), length
        )

        def rotated(x_BTNH: jax.Array, positions_BT: jax.Array) -> jax.Array:
            return apply_rope(
                x_BTNH,
                positions_BT,
                frequencies,
                layout=self.layout,
                attention_factor=attention_factor,
            )

        return rotated(query, query_positions), rotated(key, key_positions)

    def validate_sizes(self, *, model_dim, head_dim):
        del model_dim
        rotary_dim = self.rotary_dim(head_dim)
        even = rotary_dim >= 2 and rotary_dim % 2 == 0
        wanted = f"such that int({head_dim} * fraction) is even and positive, not {rotary_dim}"
        check_field(self, "fraction", even, wanted)
        self.scaling.validate_rotary_dim(rotary_dim)


@dataclass(frozen=True)
class ALiBi(Position):
    """Penalizes scores linearly with the distance (Press et al., 2022)."""

    factor: float = 1.0
    """Multiplier of the penalties: head_dim^-0.5 in Falcon, which scales them like the scores."""
    rounded: bool = False
    """Whether slopes and their products with key positions are rounded to bfloat16 (Falcon)."""
    max_exponent: float = 8.0
    """Exponent m of the last head's slope, 2^-m: 8 in the paper, 16 in MPT-7B-StoryWriter."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, factor=POSITIVE, max_exponent=POSITIVE)

    def bias(self, query_positions, key_positions, *, num_heads, table=None):
        del table
        slopes = alibi_slopes(num_heads, max_exponent=self.max_exponent)
        return Bias(slopes, query_positions, key_positions, self)

    def score(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """See `alibi_bias` and `rounded_alibi_bias`; `heads` are the slopes."""
        function = rounded_alibi_bias if self.rounded else alibi_bias
        return self.factor * function(heads, query_positions, key_positions)


@dataclass(frozen=True)
class T5Bias(Position):
    """Adds a learned scalar per head and bucket of the distance (Raffel et al., 2020)."""

    num_buckets: int = 32
    """Number of buckets, for both directions together."""
    max_distance: int = 128
    """Distance beyond which all keys share the last bucket."""
    bidirectional: bool = field(kw_only=True)
    """True in encoders; False if keys ahead of the query are masked."""
    shared: bool = field(default=True, kw_only=True)
    """Whether all layers share one table, unlike in UMT5."""

    def __post_init__(self):
        super().__post_init__()
        least = 4 if self.bidirectional else 2
        check_field(self, "num_buckets", self.num_buckets >= least, f"at least {least}")
        one_way = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        beyond = self.max_distance > one_way // 2
        check_field(self, "max_distance", beyond, f"above {one_way // 2}, the exact buckets")

    def table(self, *, model_dim, num_heads):
        del model_dim
        return (self.num_buckets, num_heads), ("buckets", "heads")

    def bias(self, query_positions, key_positions, *, num_heads, table=None):
        del num_heads
        return Bias(self._required(table), query_positions, key_positions, self)

    def score(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """See `t5_bias`; `heads` is the table."""
        return t5_bias(
            heads,
            query_positions,
            key_positions,
            bidirectional=self.bidirectional,
            max_distance=self.max_distance,
        )


def _add_to_first_channels(x_BTD: jax.Array, code_BTC: jax.Array) -> jax.Array:
    missing = x_BTD.shape[-1] - code_BTC.shape[-1]
    return x_BTD + jnp.pad(code_BTC, ((0, 0), (0, 0), (0, missing))).astype(x_BTD.dtype)
