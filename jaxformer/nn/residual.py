"""Residual arrangements: where the norms are around the sublayers of a block."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from jaxformer.checks import check_types

Map = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class Residual(abc.ABC):
    """How the sublayers of a block are connected to the residual stream."""

    def __post_init__(self):
        check_types(self)

    @property
    def final_norm(self) -> bool:
        """Whether a stack needs a norm at its end: its blocks do not normalise the stream."""
        return True

    def num_norms(self, num_sublayers: int) -> int:
        """The number of norms of a block with this many sublayers."""
        return num_sublayers

    @abc.abstractmethod
    def __call__(self, x: jax.Array, sublayers: Sequence[Map], norms: Sequence[Map]) -> jax.Array:
        """Applies the block to `x` `[B, T, D]`."""


@dataclass(frozen=True)
class PreNorm(Residual):
    """`x + f(norm(x))` for each sublayer (GPT-2, Llama, T5; Xiong et al., 2020)."""

    final_norm: bool = True
    """False: whatever reads the stream after the stack normalises it (CLIP's images)."""

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = x + sublayer(norm(x))
        return x


@dataclass(frozen=True)
class PostNorm(Residual):
    """`norm(x + f(x))` for each sublayer (Vaswani et al., 2017; BERT)."""

    @property
    def final_norm(self) -> bool:
        return False

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = norm(x + sublayer(x))
        return x


@dataclass(frozen=True)
class BranchNorm(Residual):
    """`x + norm(f(x))` for each sublayer (Swin Transformer V2, 2021; OLMo 2)."""

    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms, strict=True):
            x = x + norm(sublayer(x))
        return x


@dataclass(frozen=True)
class SandwichNorm(Residual):
    """`x + norm'(f(norm(x)))` for each sublayer (CogView, 2021; Gemma 2)."""

    def num_norms(self, num_sublayers: int) -> int:
        return 2 * num_sublayers

    def __call__(self, x, sublayers, norms):
        pairs = zip(norms[::2], norms[1::2], strict=True)
        for sublayer, (before, after) in zip(sublayers, pairs, strict=True):
            x = x + after(sublayer(before(x)))
        return x


@dataclass(frozen=True)
class Parallel(Residual):
    """`x + sum_i f_i(norm_i(x))`: all sublayers read the same stream (GPT-J, 2021)."""

    shared_norm: bool = True
    """One norm feeds every sublayer (GPT-J, Phi); otherwise each has its own (GPT-NeoX)."""

    def num_norms(self, num_sublayers: int) -> int:
        return 1 if self.shared_norm else num_sublayers

    def __call__(self, x, sublayers, norms):
        if self.shared_norm:
            shared = norms[0](x)
            return x + sum(sublayer(shared) for sublayer in sublayers)
        return x + sum(f(norm(x)) for f, norm in zip(sublayers, norms, strict=True))
