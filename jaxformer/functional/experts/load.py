"""The load of experts: the tokens that each gets and has places for, and losses to balance it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import POSITIVE, at_least, check_argument
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
    in order, and the experts of a token in the order of its choice, so no token depends on later
    ones, nor on other rows. Padding takes no place.

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


def _counted(like, real):
    """Returns `[B, T, 1]`: 1 at the real tokens and 0 at padding, in the dtype of `like`."""
    tokens = like[..., :1]
    if real is None:
        return jnp.ones_like(tokens)
    sizes = assert_axes(tokens=(tokens, "B T 1"))
    assert_axes(sizes, real=(real, "B/1 T"))
    assert_bool(real=real)
    return jnp.ones_like(tokens) * real[..., None].astype(like.dtype)
