"""Poolers, which map the states of an image's tokens to a single vector."""

import abc
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import check_types
from jaxformer.functional.arrays import assert_axes, place, spec_of
from jaxformer.functional.feedforward import activation
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.functional.norms import NoNorm, Norm
from jaxformer.functional.positions.base import NoPosition
from jaxformer.models.heads.base import pool
from jaxformer.nn.attention import Attention
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.layers import Linear, NormLayer, normal, parameter
from jaxformer.nn.sublayer import Context


@dataclass(frozen=True)
class Pooler(abc.ABC):
    """Configuration of a pooler; `build` creates the module, `[B, T, D] -> [B, D]`.

    The module also takes the real tokens, bool `[B, T]`; None means all.
    """

    def __post_init__(self):
        check_types(self)

    @abc.abstractmethod
    def build(self, key: jax.Array, config: TransformerConfig) -> nnx.Module:
        """Declares the parameters."""


@dataclass(frozen=True)
class NormPooler(Pooler):
    r"""The model's norm of the first token's state (CLIP), or of the mean over patches (BEiT).

    .. math:: y = \mathrm{norm}(h_0) \qquad y = \mathrm{norm}(\tfrac{1}{P} \textstyle\sum_i h_i)

    References:
        Radford et al., 2021 (https://arxiv.org/abs/2103.00020), section 2.4;
        Bao et al., 2022 (https://arxiv.org/abs/2106.08254), section 2.6.
    """

    pooling: Literal["first", "mean"] = "first"
    """The input: the first token's state, or the mean over patches."""

    def build(self, key, config):
        make = FirstNorm if self.pooling == "first" else partial(MeanNorm, prefix=config.num_prefix)
        return make(key, config.norm, config.model_dim)


@dataclass(frozen=True)
class PrefixPooler(Pooler):
    r"""The mean of the states before the patches: the class and the distillation token (AST).

    .. math:: y = \tfrac{1}{P} \textstyle\sum_{i < P} h_i

    References:
        Gong et al., AST (https://arxiv.org/abs/2104.01778), section 2.2.
    """

    norm: bool = False
    """Whether the model's norm is applied to the mean."""

    def build(self, key, config):
        return PrefixMean(key, config.norm if self.norm else NoNorm(), config)


@dataclass(frozen=True)
class AttentionPooler(Pooler):
    r"""Attention of a learned query to all states, and a feed-forward layer (SigLIP).

    .. math:: a = \mathrm{attention}(q, h, h), \qquad y = a + f(\mathrm{norm}(a))

    with the heads, widths and activation of the model.

    References:
        Zhai et al., Scaling Vision Transformers (https://arxiv.org/abs/2106.04560), section 3.3.
    """

    def build(self, key, config):
        return AttentionPooling(key, config)


class FirstNorm(NormLayer):
    """`NormPooler` with its parameters."""

    def __call__(self, hidden: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """`[B, T, D] -> [B, D]`."""
        assert_axes(hidden=(hidden, "B T D"))
        return super().__call__(hidden[:, 0])


class MeanNorm(NormLayer):
    """`NormPooler` with its parameters, on the mean over all but the first `prefix` states."""

    def __init__(self, key: jax.Array, norm: Norm, dim: int, prefix: int):
        """Declares the norm's parameters."""
        super().__init__(key, norm, dim)
        self.prefix = prefix

    def __call__(self, hidden: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """`[B, T, D] -> [B, D]`."""
        assert_axes(hidden=(hidden, "B T D"))
        real = None if real is None else real[:, self.prefix :]
        return super().__call__(pool(hidden[:, self.prefix :], real, "mean"))


class PrefixMean(NormLayer):
    """`PrefixPooler` with its parameters."""

    def __init__(self, key: jax.Array, norm: Norm, config: TransformerConfig):
        """Declares the norm's parameters."""
        super().__init__(key, norm, config.model_dim)
        self.prefix = config.num_prefix

    def __call__(self, hidden: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """`[B, T, D] -> [B, D]`."""
        assert_axes(hidden=(hidden, "B T D"))
        return super().__call__(pool(hidden[:, : self.prefix], None, "mean"))


class FirstDense(Linear):
    """A dense layer on the first token's state."""

    def __init__(self, key: jax.Array, config: TransformerConfig, nonlinearity: str):
        """Declares the layer."""
        dim, std = config.model_dim, normal(config.init_std)
        super().__init__(key, {"embed": dim}, {"pooled": dim}, std, bias=True)
        self.activation = nonlinearity

    def __call__(self, hidden: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """`[B, T, D] -> [B, D]`."""
        assert_axes(hidden=(hidden, "B T D"))
        return activation(self.activation)(super().__call__(hidden[:, 0]))


class AttentionPooling(nnx.Module):
    """`AttentionPooler` with its parameters."""

    def __init__(self, key: jax.Array, config: TransformerConfig):
        """Declares the query, the attention, the norm and the feed-forward layer."""
        keys, dim = jax.random.split(key, 4), config.model_dim
        self.probe = parameter(keys[0], (dim,), ("embed",), normal(config.init_std))
        self.attention = Attention(keys[1], config, NoPosition())
        self.norm = NormLayer(keys[2], config.norm, dim)
        self.feed_forward = FeedForward(keys[3], config)

    def __call__(self, hidden: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """`[B, T, D] -> [B, D]`."""
        assert_axes(hidden=(hidden, "B T D"))
        rows, length, dim = hidden.shape
        probe = jnp.broadcast_to(self.probe[...].astype(hidden.dtype), (rows, 1, dim))
        positions = jnp.arange(length)[None, :]
        first = jnp.zeros((1, 1), jnp.int32)
        found = self.attention(
            place(probe, spec_of(hidden)),
            kv=hidden,
            mask=Mask() if real is None else KeyPadding(real),
            positions=first,
            kv_positions=positions,
        )
        found = found + self.feed_forward(self.norm(found), Context(first), None)
        return found[:, 0]


def build_pooler(
    key: jax.Array, config: TransformerConfig, pooler: str | Pooler | None
) -> nnx.Module | None:
    """Builds the module of a pooler, or of a dense pooler with an activation name, or None."""
    if isinstance(pooler, Pooler):
        return pooler.build(key, config)
    return None if pooler is None else FirstDense(key, config, pooler)
