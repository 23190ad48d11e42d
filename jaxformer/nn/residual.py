"""Residual arrangements: where the norms are around the sublayers of a block."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax

from jaxformer.checks import POSITIVE, check_fields, check_types, optional
from jaxformer.functional.activations import tap

Map = Callable[[jax.Array], jax.Array]


class Branch(NamedTuple):
    """A sublayer of a block, with the names that activations have around it."""

    map: Map
    """Maps the stream, or its norm, to the sublayer's output."""
    output: str = "hook_out"
    """The name of the sublayer's output: "hook_attn_out"."""
    stream: str = "hook_resid"
    """The name of the stream after the addition: "hook_resid_mid"."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """The sublayer's output `[B, T, D]`."""
        return self.map(x)

    @classmethod
    def of(cls, sublayer: Map) -> "Branch":
        """The sublayer itself, or a function as one."""
        return sublayer if isinstance(sublayer, Branch) else cls(sublayer)


def add(x: jax.Array, y: jax.Array, sublayer: Map) -> jax.Array:
    """Adds the output `y` of a sublayer to the stream `x`; both have names for `tap`."""
    branch = Branch.of(sublayer)
    return tap(branch.stream, x + tap(branch.output, y))


@dataclass(frozen=True)
class Residual(abc.ABC):
    """How the sublayers of a block are connected to the residual stream."""

    output_scale: float = field(default=1.0, kw_only=True)
    """Multiplies the output of every sublayer before it is added to the stream (Granite)."""
    layer_scale: float | None = field(default=None, kw_only=True)
    """The initial value of a learned factor for every channel of a sublayer's output (CaiT,
    DINOv2). None: no factor."""
    first_norm: bool = field(default=True, kw_only=True)
    """False: the first sublayer of the first layer has no norm (ModernBERT). Then `windows` must
    have an entry for every layer, because the first layer differs."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, output_scale=POSITIVE, layer_scale=optional(POSITIVE))

    @property
    def final_norm(self) -> bool:
        """Whether a stack needs a norm at its end: its blocks do not normalise the stream."""
        return True

    def num_norms(self, num_sublayers: int) -> int:
        """The number of norms of a block with this many sublayers."""
        return num_sublayers

    def norm_names(self, num_sublayers: int) -> list[str]:
        """The names of the norms, for their activations: "ln1", "ln2", ..."""
        return [f"ln{number + 1}" for number in range(self.num_norms(num_sublayers))]

    @abc.abstractmethod
    def __call__(self, x: jax.Array, sublayers: Sequence[Map], norms: Sequence[Map]) -> jax.Array:
        """Applies the block to `x` `[B, T, D]`."""


@dataclass(frozen=True)
class PreNorm(Residual):
    """`x + f(norm(x))` for each sublayer (GPT-2, Llama, T5; Xiong et al., 2020)."""

    final_norm: bool = True
    """False: the reader of the stream after the stack normalises it (CLIP's images)."""

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = add(x, sublayer(norm(x)), sublayer)
        return x


@dataclass(frozen=True)
class PostNorm(Residual):
    """`norm(x + f(x))` for each sublayer (Vaswani et al., 2017; BERT)."""

    @property
    def final_norm(self) -> bool:
        return False

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = norm(add(x, sublayer(x), sublayer))
        return tap("hook_normalized_resid_post", x)


@dataclass(frozen=True)
class BranchNorm(Residual):
    """`x + norm(f(x))` for each sublayer (Swin Transformer V2, 2021; OLMo 2)."""

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = add(x, norm(sublayer(x)), sublayer)
        return x


@dataclass(frozen=True)
class StreamNorm(Residual):
    """`norm(x) + f(norm(x))` for each sublayer: the stream stays normalised (an option of
    Megatron-LM and BLOOM).
    """

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = norm(x)
            x = add(x, sublayer(x), sublayer)
        return x


@dataclass(frozen=True)
class SandwichNorm(Residual):
    """`x + norm'(f(norm(x)))` for each sublayer (CogView, 2021; Gemma 2)."""

    def num_norms(self, num_sublayers: int) -> int:
        return 2 * num_sublayers

    def norm_names(self, num_sublayers: int) -> list[str]:
        names = super().norm_names(num_sublayers)[:num_sublayers]
        return [each for name in names for each in (name, f"{name}_post")]

    def __call__(self, x, sublayers, norms):
        pairs = zip(norms[::2], norms[1::2], strict=True)
        for sublayer, (before, after) in zip(sublayers, pairs, strict=True):
            x = add(x, after(sublayer(before(x))), sublayer)
        return x


@dataclass(frozen=True)
class Parallel(Residual):
    """`x + sum_i f_i(norm_i(x))`: all sublayers read the same stream (GPT-J, 2021)."""

    shared_norm: bool = True
    """One norm feeds every sublayer (GPT-J, Phi); otherwise each has its own (GPT-NeoX)."""

    def num_norms(self, num_sublayers: int) -> int:
        return 1 if self.shared_norm else num_sublayers

    def __call__(self, x, sublayers, norms):
        branches = [Branch.of(sublayer) for sublayer in sublayers]
        if self.shared_norm:
            shared = norms[0](x)
            outputs = (tap(branch.output, branch(shared)) for branch in branches)
        else:
            pairs = zip(branches, norms, strict=True)
            outputs = (tap(branch.output, branch(norm(x))) for branch, norm in pairs)
        return tap(branches[-1].stream, x + sum(outputs))
