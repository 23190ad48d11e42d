"""Speculative decoding: which proposed tokens a model accepts, and which token follows them.

A proposal is the first `count` `[B]` of each row of `tokens` `[B, k]`; later ones are never read.
The model gives k + 1 distributions: after none of the tokens, after one, and so on.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.functional.arrays import assert_axes, assert_floating, assert_integers
from jaxformer.functional.sampling.next_token import greedy, sample


class Verdict(NamedTuple):
    """How each row continues: with some of the proposed tokens, then one of the model's own."""

    accepted: jax.Array
    """int `[B]`: how many of the proposed tokens are accepted, from the first."""
    replacement: jax.Array
    """int32 `[B]`: the token after the accepted ones."""


def accept_greedily(tokens: jax.Array, count: jax.Array, target: jax.Array) -> Verdict:
    r"""Accepts proposed tokens as long as they are the most probable ones.

    .. math:: y_j = \arg\max_v x_{jv}, \qquad a = \min \{ j : t_j \ne y_j \}, \qquad r = y_a

    Args:
        tokens: The proposed tokens t, `[B, k]`.
        count: `[B]`, the number of them.
        target: The model's logits x, `[B, k + 1, V]`.

    Returns:
        The accepted tokens and the next one.

    References:
        Leviathan et al., Fast Inference from Transformers via Speculative Decoding
        (https://arxiv.org/abs/2211.17192), section 2.
    """
    _assert_shapes(tokens, count, target)
    best = greedy(target)
    accepted = _leading(_is_proposed(tokens, count) & (tokens == best[:, :-1]))
    return Verdict(accepted, _at(best, accepted))


def accept_by_chance(
    keys: jax.Array, tokens: jax.Array, count: jax.Array, draft: jax.Array, target: jax.Array
) -> Verdict:
    r"""Accepts proposed tokens such that the result has the distribution of the model's samples.

    .. math::
        P(\text{accept } t_j) = \min\left(1, \frac{p_j(t_j)}{q_j(t_j)}\right), \qquad
        r \sim \frac{\max(p_a - q_a, 0)}{\sum_v \max(p_a(v) - q_a(v), 0)}

    The first token that is not accepted, at place a, is replaced by r. If all are accepted, r is
    sampled from p at the place after them.

    Args:
        keys: `[B, k + 1]` PRNG keys, one for each place, not used for the proposal.
        tokens: The proposed tokens t, `[B, k]`, sampled from q.
        count: `[B]`, the number of them.
        draft: The logits of q, `[B, k, V]`.
        target: The logits of p, `[B, k + 1, V]`.

    Returns:
        The accepted tokens and the next one.

    References:
        Leviathan et al., Fast Inference from Transformers via Speculative Decoding
        (https://arxiv.org/abs/2211.17192), algorithm 1; Chen et al., Accelerating Large Language
        Model Decoding with Speculative Sampling (https://arxiv.org/abs/2302.01318), algorithm 2.
    """
    _assert_shapes(tokens, count, target)
    sizes = assert_axes(tokens=(tokens, "B k"), target=(target, "B _ V"), draft=(draft, "B k V"))
    assert_axes(keys=(keys, f"{sizes['B']} {sizes['k'] + 1}"))
    assert_floating(draft=draft)
    halves = jax.vmap(jax.vmap(jax.random.split))(keys)
    chance = jax.vmap(jax.vmap(jax.random.uniform))(halves[:, :-1, 0])
    proposed = _is_proposed(tokens, count)
    p = jax.nn.softmax(target.astype(jnp.float32), axis=-1)
    q = jnp.where(proposed[..., None], jax.nn.softmax(draft.astype(jnp.float32), axis=-1), 0)
    p_of_token, q_of_token = (
        jnp.take_along_axis(x, tokens[..., None], axis=-1)[..., 0] for x in (p[:, :-1], q)
    )
    accepted = _leading(proposed & (chance * q_of_token < p_of_token))
    # After the last proposed token q is 0, and the residual is p.
    p, q = (_at(x, accepted) for x in (p, jnp.pad(q, ((0, 0), (0, 1), (0, 0)))))
    residual = jnp.maximum(p - q, 0)
    # If rounding leaves no residual, because p and q are equal, sample from p.
    residual = jnp.where(jnp.any(residual > 0, axis=-1, keepdims=True), residual, p)
    return Verdict(accepted, sample(_at(halves[..., 1], accepted), jnp.log(residual)))


def _assert_shapes(tokens, count, target):
    assert_axes(tokens=(tokens, "B k"), count=(count, "B"))
    assert_integers(tokens=tokens, count=count)
    rows, proposals = tokens.shape
    assert_axes(target=(target, f"{rows} {proposals + 1} V"))
    assert_floating(target=target)


def _is_proposed(tokens, count):
    return jnp.arange(tokens.shape[1])[None, :] < count[:, None]


def _leading(accepts):
    """The number accepted before the first that is not, `[B]`."""
    return jnp.sum(jnp.cumprod(accepts.astype(jnp.int32), axis=1), axis=1)


def _at(x, places):
    """`x[b, places[b]]`, `[B, ...]`."""
    return jax.vmap(lambda row, place: row[place])(x, places)
