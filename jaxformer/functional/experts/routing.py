"""Routers: which experts each token goes to, and with which weights."""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
    assert_bool,
    assert_floating,
    assert_ids,
    per_device,
    place,
    spec_of,
    static,
    whole_rows,
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


class Load(NamedTuple):
    """The load of the experts: sums over the real tokens."""

    routed: jax.Array
    """`[E]`: the tokens routed to each expert."""
    probabilities: jax.Array
    """`[E]`: the sum of the probabilities of each expert."""
    tokens: jax.Array
    """Scalar: the real tokens."""


def expert_load(
    probabilities: jax.Array, experts: jax.Array, real: jax.Array | None = None
) -> Load:
    r"""Counts the tokens of each expert, and adds up the probabilities.

    .. math:: n_e = \sum_t m_t \sum_k [e_{t k} = e], \qquad q_e = \sum_t m_t p_{t e}

    Args:
        probabilities: `[B, T, E]`: see `Router.probabilities`.
        experts: int `[B, T, K]`.
        real: bool `[B or 1, T]`: m, False for padding, which does not count; None: all are real.

    Returns:
        The sums.

    Raises:
        AssertionError: Shapes do not fit together, or dtypes are wrong.
    """
    sizes = assert_axes(probabilities=(probabilities, "B T E"), experts=(experts, "B T K"))
    assert_floating(probabilities=probabilities)
    assert_ids(sizes["E"], experts=experts)
    chosen = jnp.sum(jax.nn.one_hot(experts, sizes["E"], dtype=probabilities.dtype), axis=-2)
    counted = _counted(probabilities, real)
    weighted = (jnp.sum(each * counted, axis=(0, 1)) for each in (chosen, probabilities))
    return Load(*weighted, jnp.sum(counted))


def within_capacity(
    experts: jax.Array, num: int, capacity: float, real: jax.Array | None = None
) -> jax.Array:
    r"""Returns which experts have a place for their tokens.

    .. math:: m_{b t k} = \Bigl[\, \sum_{(s, j) < (t, k)} [e_{b s j} = e_{b t k}] < C_b \Bigr],
              \qquad C_b = \lceil c K T_b / E \rceil

    Each expert has C places for the :math:`T_b` real tokens of a row. The tokens of a row take them
    in order, and a token's experts in that of its choice, so no token depends on later ones, nor on
    other rows. Padding takes no place.

    Args:
        experts: int `[B, T, K]`: the experts of each token, in [0, E).
        num: E, the number of experts.
        capacity: c, in multiples of a uniform load.
        real: bool `[B or 1, T]`: False for padding; None: all are real.

    Returns:
        bool `[B, T, K]`; False for padding.

    Raises:
        AssertionError: Shapes do not fit together, or dtypes are wrong.
        ArgumentError: `num` or `capacity` is not positive.

    References:
        Fedus et al., Switch Transformers (https://arxiv.org/abs/2101.03961), section 2.2.
    """
    num = static("num", num, at_least(1))
    capacity = static("capacity", capacity, POSITIVE)
    sizes = assert_axes(experts=(experts, "B T K"))
    assert_ids(num, experts=experts)
    length, count = sizes["T"], sizes["K"]
    tokens = _counted(experts, real)
    places = np.ceil(np.round(capacity * count * np.arange(length + 1) / num, 6)).astype(np.int32)

    def of_rows(experts, tokens):
        chosen = jax.nn.one_hot(experts, num, dtype=jnp.int32) * tokens[..., None]
        flat = chosen.reshape(chosen.shape[0], length * count, num)
        before = (jnp.cumsum(flat, axis=1) - flat).reshape(chosen.shape)
        limits = jnp.asarray(places)[jnp.sum(tokens, axis=(1, 2))]
        full = jnp.sum(before * chosen, axis=-1) >= limits[:, None, None]
        return (tokens > 0) & ~full

    rows = [whole_rows(each) for each in (experts, tokens)]
    kept = per_device(of_rows, *rows)
    return place(kept, spec_of(experts))


def balance_loss(load: Load) -> jax.Array:
    r"""The load balancing loss of the Switch Transformer: its minimum is K, for a uniform load.

    .. math:: \mathcal{L} = E \sum_e f_e P_e, \qquad f_e = n_e / T, \qquad P_e = q_e / T

    Only P has a gradient. With K experts per token, f counts all of them, as in transformers.

    Args:
        load: The sums over the real tokens of a layer, or of several layers.

    Returns:
        A scalar; 0 without tokens.

    Raises:
        ArgumentError: The argument is not a `Load`.

    References:
        Fedus et al., Switch Transformers (https://arxiv.org/abs/2101.03961), equations 4 to 6.
    """
    check_argument("load", load, isinstance(load, Load), "the result of expert_load")
    tokens = jnp.maximum(load.tokens, 1.0)
    products = jax.lax.stop_gradient(load.routed / tokens) * (load.probabilities / tokens)
    return load.routed.shape[0] * jnp.sum(products)


def router_z_loss(logits: jax.Array, real: jax.Array | None = None) -> jax.Array:
    r"""The mean square of the log-partition of the router's logits, which keeps them small.

    .. math:: \mathcal{L} = \frac{1}{T} \sum_t \Bigl(\log \sum_e \exp z_{t e}\Bigr)^2

    Args:
        logits: `[B, T, E]`.
        real: bool `[B or 1, T]`: False for padding, which does not count; None: all are real.

    Returns:
        A scalar of at least float32; 0 without tokens.

    Raises:
        AssertionError: Shapes do not fit together, or dtypes are wrong.

    References:
        Zoph et al., ST-MoE (https://arxiv.org/abs/2202.08906), equation 5.
    """
    assert_axes(logits=(logits, "B T E"))
    assert_floating(logits=logits)
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    squares = jnp.square(jax.nn.logsumexp(wide, axis=-1, keepdims=True))
    counted = _counted(wide, real)
    return jnp.sum(squares * counted) / jnp.maximum(jnp.sum(counted), 1.0)


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


def _counted(like, real):
    """Returns `[B, T, 1]`: 1 at the real tokens and 0 at padding, in the dtype of `like`."""
    tokens = like[..., :1]
    if real is None:
        return jnp.ones_like(tokens)
    sizes = assert_axes(tokens=(tokens, "B T 1"))
    assert_axes(sizes, real=(real, "B/1 T"))
    assert_bool(real=real)
    return jnp.ones_like(tokens) * real[..., None].astype(like.dtype)


def _scores(function, logits, count):
    """Returns the float32 scores of all experts, of which `count` can be chosen."""
    assert_axes(logits=(logits, "... E"))
    assert_floating(logits=logits)
    fits = 1 <= count <= logits.shape[-1]
    check_argument("count", count, fits, f"from 1 to the {logits.shape[-1]} experts")
    return function(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
