"""What a model makes of the tokens that another one proposed: how many it takes, and what follows.

A proposal is `tokens [B, k]` with `count [B]`: the first `count` of a row are proposed, what lies
beyond is never read. The model's distributions are those of k + 1 places: after none of the tokens,
after one, and so on.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.functional.assertions import assert_axes, assert_floating, assert_integers
from jaxformer.functional.sampling.next_token import greedy, sample


class Verdict(NamedTuple):
    """How each row goes on: some proposed tokens, and one that was not proposed."""

    accepted: jax.Array
    """int `[B]`: how many of the proposed tokens stand, the first of them."""
    replacement: jax.Array
    """int32 `[B]`: the token after these."""


def accept_greedily(tokens: jax.Array, count: jax.Array, target: jax.Array) -> Verdict:
    r"""Takes proposed tokens as long as they are the most probable ones.

    .. math:: y_j = \arg\max_v x_{jv}, \qquad a = \min \{ j : t_j \ne y_j \}, \qquad r = y_a

    Args:
        tokens: T, `[B, k]`.
        count: `[B]`.
        target: X, the model's logits `[B, k + 1, V]`.

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
    r"""Takes proposed tokens so that what stands is distributed as if the model had drawn it.

    .. math::
        P(\text{accept } t_j) = \min\left(1, \frac{p_j(t_j)}{q_j(t_j)}\right), \qquad
        r \sim \frac{\max(p_a - q_a, 0)}{\sum_v \max(p_a(v) - q_a(v), 0)}

    The first token that is not accepted, at place a, is replaced by r. If all are, r is drawn from
    p at the place after them.

    Args:
        keys: `[B, k + 1]` random keys, one for each place, each used once and not for the proposal.
        tokens: T, `[B, k]`, drawn from q.
        count: `[B]`.
        draft: The logits of q, `[B, k, V]`.
        target: The logits of p, `[B, k + 1, V]`.

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
    # Where nothing is proposed q is 0, and the residual is p.
    p, q = (_at(x, accepted) for x in (p, jnp.pad(q, ((0, 0), (0, 1), (0, 0)))))
    residual = jnp.maximum(p - q, 0)
    # Two equal distributions may differ by rounding in one token, and then in no other.
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
    """How many are accepted before the first that is not, `[B]`."""
    return jnp.sum(jnp.cumprod(accepts.astype(jnp.int32), axis=1), axis=1)


def _at(x, places):
    """`x[b, places[b]]`, `[B, ...]`."""
    return jax.vmap(lambda row, place: row[place])(x, places)
