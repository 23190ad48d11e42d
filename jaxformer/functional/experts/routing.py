"""Routers: which experts each token goes to, and with which weights."""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.checks import (
    POSITIVE,
    at_least,
    check_argument,
    check_field,
    check_fields,
    check_types,
)
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    per_device,
)
from jaxformer.functional.norms import ParameterTable


class Routes(NamedTuple):
    """The experts of each token."""

    weights: jax.Array
    """float32 `[..., K]`: the weight of each expert's result."""
    experts: jax.Array
    """int32 `[..., K]`: the experts, the best one first."""


@dataclass(frozen=True)
class Router(abc.ABC):
    """Base class of routers, which choose K of E experts by the logits of a linear map.

    The K experts with the highest scores are chosen; the lower index wins a tie.
    """

    def __post_init__(self):
        check_types(self)

    @property
    def bias(self) -> bool:
        """Whether the linear map has a bias."""
        return False

    def parameters(self, num: int) -> ParameterTable:
        """Returns the router's own parameters, which do not learn; none by default."""
        del num
        return {}

    def check(self, num: int, per_token: int) -> None:
        """Raises ConfigError if the router cannot choose `per_token` of `num` experts."""
        del num, per_token

    @abc.abstractmethod
    def __call__(self, logits: jax.Array, count: int, **parameters: jax.Array) -> Routes:
        """Chooses experts.

        Args:
            logits: float32 `[..., E]`.
            count: K, the number of experts of a token.
            **parameters: Those that `parameters` declares, by name.

        Returns:
            The experts and their weights.
        """

    def probabilities(self, logits: jax.Array) -> jax.Array:
        """Returns the distribution over all experts that a balancing loss makes uniform."""
        return jax.nn.softmax(logits, axis=-1)


@dataclass(frozen=True)
class GroupedRouter(Router):
    """Base class of routers that choose within the best groups of experts.

    The experts are in `groups` of equal size; only those of `kept_groups` groups are candidates,
    the ones whose highest scores have the largest sum.
    """

    groups: int = 1
    """Groups of experts."""
    kept_groups: int = 1
    """Groups whose experts are candidates."""
    renormalize: bool = True
    """Whether the weights of a token sum to `scale`."""
    scale: float = 1.0
    """λ, which multiplies the weights."""

    counted: ClassVar[int]
    """The highest scores of a group that are added up."""

    def __post_init__(self):
        super().__post_init__()
        kept = 1 <= self.kept_groups <= self.groups
        check_fields(self, "router", groups=at_least(1), scale=POSITIVE)
        check_field(self, "kept_groups", kept, f"from 1 to groups = {self.groups}", "router")

    def check(self, num, per_token):
        least = self.counted
        divides = num % self.groups == 0 and (self.groups == 1 or num // self.groups >= least)
        wanted = f"a divisor of num = {num}, with at least {least} of the experts in a group"
        check_field(self, "groups", divides, wanted, "router")
        most = num // self.groups * self.kept_groups
        fits = per_token <= most
        wanted = f"more: per_token = {per_token} is larger than the {most} experts in them"
        check_field(self, "kept_groups", fits, wanted, "router")

    def candidates(self, scores: jax.Array) -> jax.Array:
        """Returns the scores `[..., E]`, those outside of the best groups as -inf."""
        if self.groups == 1:
            return scores
        grouped = scores.reshape(*scores.shape[:-1], self.groups, -1)
        best = jnp.sum(_top_k(grouped, self.counted)[0], axis=-1)
        kept = jax.nn.one_hot(_top_k(best, self.kept_groups)[1], self.groups)
        allowed = jnp.sum(kept, axis=-2)[..., None] > 0
        return jnp.where(allowed, grouped, -math.inf).reshape(scores.shape)

    def weighted(self, weights: jax.Array, least: float = 0.0) -> jax.Array:
        """Returns the weights of the chosen experts, from their scores `[..., K]`."""
        if self.renormalize:
            weights /= jnp.sum(weights, axis=-1, keepdims=True) + least
        return self.scale * weights


@dataclass(frozen=True)
class SoftmaxTopK(GroupedRouter):
    r"""The highest of the probabilities of all experts.

    .. math:: w_k = \lambda\, p_{e_k} \quad\text{or}\quad w_k = \lambda\, p_{e_k} / \sum_j p_{e_j},
              \qquad p = \mathrm{softmax}(z)

    Renormalized (Mixtral, Qwen3-MoE) or not (OLMoE, Qwen2-MoE, DeepSeek-V2). DeepSeek-V2 chooses
    within the groups with the highest probabilities, and scales the weights.

    References:
        Jiang et al., Mixtral of Experts (https://arxiv.org/abs/2401.04088), section 2.1;
        Muennighoff et al., OLMoE (https://arxiv.org/abs/2409.02060), section 2;
        DeepSeek-AI, DeepSeek-V2 (https://arxiv.org/abs/2405.04434), section 2.2.
    """

    counted = 1

    def __call__(self, logits, count):
        scores = _scores(jax.nn.softmax, logits, count)
        weights, experts = _top_k(self.candidates(scores), count)
        return Routes(self.weighted(weights), experts)


@dataclass(frozen=True)
class TopKSoftmax(Router):
    r"""The highest logits, and the softmax over them (gpt-oss).

    .. math:: w = \mathrm{softmax}(z_{e_1}, \dots, z_{e_K})

    Without a bias, this equals `SoftmaxTopK`, renormalized.

    References:
        OpenAI, gpt-oss model card (https://arxiv.org/abs/2508.10925).
    """

    linear_bias: bool = True
    """Whether the linear map has a bias."""

    @property
    def bias(self):
        return self.linear_bias

    def __call__(self, logits, count):
        highest, experts = _top_k(_scores(lambda z: z, logits, count), count)
        return Routes(jax.nn.softmax(highest, axis=-1), experts)


@dataclass(frozen=True)
class SigmoidTopK(GroupedRouter):
    r"""The highest biased sigmoids within the best groups of experts (DeepSeek-V3).

    .. math:: s = \sigma(z), \qquad e = \mathrm{topk}(s + b), \qquad
              w_k = \lambda\, s_{e_k} / \sum_j s_{e_j}

    The best groups are those whose two highest biased scores have the largest sum. The bias b
    chooses and does not weight; it has no gradient.

    References:
        DeepSeek-AI, DeepSeek-V3 (https://arxiv.org/abs/2412.19437), section 2.1.2.
    """

    counted = 2

    def parameters(self, num):
        return {"correction": ((num,), ("experts",), 0.0)}

    def __call__(self, logits, count, *, correction):
        scores = _scores(jax.nn.sigmoid, logits, count)
        biases = jnp.expand_dims(correction, range(scores.ndim - 1))
        experts = _top_k(self.candidates(jax.lax.stop_gradient(scores + biases)), count)[1]
        weights = jnp.sum(jax.nn.one_hot(experts, scores.shape[-1]) * scores[..., None, :], axis=-1)
        return Routes(self.weighted(weights, 1e-20), experts)

    def probabilities(self, logits):
        scores = jax.nn.sigmoid(logits)
        return scores / jnp.sum(scores, axis=-1, keepdims=True)


@dataclass(frozen=True)
class ClampedSwiGLU:
    r"""The gated activation of gpt-oss.

    .. math:: y = (u' + 1)\, g' \sigma(\alpha g'), \qquad
              g' = \min(g, c), \qquad u' = \max(-c, \min(u, c))

    References:
        OpenAI, gpt-oss model card (https://arxiv.org/abs/2508.10925).
    """

    limit: float = 7.0
    """c."""
    alpha: float = 1.702
    """α."""

    joint = True

    def __post_init__(self):
        check_types(self)
        check_fields(self, limit=POSITIVE, alpha=POSITIVE)

    def __call__(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        """Returns the hidden units of the gate's and the other units, `[..., F]` each."""
        gate = jnp.minimum(gate, self.limit)
        up = jnp.clip(up, -self.limit, self.limit)
        return (up + 1) * gate * jax.nn.sigmoid(self.alpha * gate)


def _top_k(values, count):
    """Returns the largest values and their indices; XLA would gather the rows of all devices."""
    return per_device(lambda x: tuple(jax.lax.top_k(x, count)), values)


def _scores(function, logits, count):
    """Returns the float32 scores of all experts, of which `count` can be chosen."""
    assert_axes(logits=(logits, "... E"))
    assert_floating(logits=logits)
    fits = 1 <= count <= logits.shape[-1]
    check_argument("count", count, fits, f"from 1 to the {logits.shape[-1]} experts")
    return function(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
