"""Effects of positional schemes on attention scores: steps, collisions, relative parts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import NOT_NEGATIVE, check_argument
from jaxformer.functional.arrays import assert_axes, assert_floating, check_numbers
from jaxformer.functional.positions.base import Position

_ROWS = 256


class ScoreTerms(NamedTuple):
    """The four terms of the scores of embeddings with an added position code."""

    content_content: jax.Array
    """[T, S]: content and content, which is the whole score without positions."""
    content_position: jax.Array
    """[T, S]: the query's content and the key's position."""
    position_content: jax.Array
    """[T, S]: the query's position and the key's content."""
    position_position: jax.Array
    """[T, S]: position and position."""


def score_terms(
    content: jax.Array, code: jax.Array, query_kernel: jax.Array, key_kernel: jax.Array
) -> ScoreTerms:
    r"""Expands attention scores with an added position code into four terms.

    .. math::
        (x_m + p_m)^\top W_q^\top W_k (x_n + p_n) = x_m^\top W x_n + x_m^\top W p_n
        + p_m^\top W x_n + p_m^\top W p_n, \qquad W = W_q^\top W_k

    Only the last has both positions, and even it depends on more than m - n: a code with
    `p_m = R_m p_0` makes it `p_0^T R_m^T W R_n p_0`, which is a function of n - m where W commutes
    with the rotations, as the identity does and a learned W does not.

    Args:
        content: [T, D], x.
        code: [T, D], p.
        query_kernel: [D, H], W_q transposed.
        key_kernel: [D, H], W_k transposed.

    Returns:
        The terms, [T, T] float32 each; their sum is the score.

    References:
        Dai et al., Transformer-XL, 2019 (section 3.3), https://arxiv.org/abs/1901.02860
    """
    sizes = assert_axes(content=(content, "T D"), query_kernel=(query_kernel, "D H"))
    assert_axes(sizes, code=(code, "T D"), key_kernel=(key_kernel, "D H"))
    assert_floating(content=content, code=code, query_kernel=query_kernel, key_kernel=key_kernel)
    exact = jax.lax.Precision.HIGHEST

    def projected(kernel: jax.Array) -> list[jax.Array]:
        return [jnp.matmul(x, kernel, precision=exact) for x in (content, code)]

    queries = projected(query_kernel)
    keys = projected(key_kernel)
    return ScoreTerms(*(jnp.matmul(q, k.T, precision=exact) for q in queries for k in keys))


def position_scores(
    scheme: Position,
    content: jax.Array,
    query_kernel: jax.Array,
    key_kernel: jax.Array,
    *,
    table: jax.Array | None = None,
) -> jax.Array:
    r"""Computes the attention scores of one layer under a positional scheme, before mask and
    softmax.

    .. math::
        \langle R_m W_q\, e(x_m), R_n W_k\, e(x_n) \rangle / \sqrt{H} + b(m, n)

    with `e`, `R` and `b` the scheme's `embed`, `rotate` and `bias`, at the positions 0 .. T - 1.

    Args:
        scheme: The scheme.
        content: [T, D].
        query_kernel: [D, N, H].
        key_kernel: [D, N, H].
        table: The scheme's learned table, if it has one.

    Returns:
        [N, T, T] float32.
    """
    check_argument("scheme", scheme, isinstance(scheme, Position), "a Position, such as RoPE()")
    sizes = assert_axes(content=(content, "T D"), query_kernel=(query_kernel, "D N H"))
    assert_axes(sizes, key_kernel=(key_kernel, "D N H"))
    assert_floating(content=content, query_kernel=query_kernel, key_kernel=key_kernel)
    positions_BT = jnp.arange(sizes["T"])[None]
    x_BTD = scheme.embed(jnp.asarray(content, jnp.float32)[None], positions_BT, table)
    exact = jax.lax.Precision.HIGHEST
    query_BTNH, key_BTNH = (
        jnp.einsum("btd,dnh->btnh", x_BTD, kernel, precision=exact)
        for kernel in (query_kernel, key_kernel)
    )
    query_BTNH, key_BTNH = scheme.rotate(query_BTNH, key_BTNH, positions_BT, positions_BT)
    scores_BNTS = jnp.einsum("btnh,bsnh->bnts", query_BTNH, key_BTNH, precision=exact)
    scores_BNTS = scores_BNTS * sizes["H"] ** -0.5
    bias = scheme.bias(positions_BT, positions_BT, num_heads=sizes["N"], table=table)
    return (scores_BNTS if bias is None else scores_BNTS + bias.values())[0]


def relative_share(scores: jax.Array) -> jax.Array:
    r"""Returns the fraction of the variance of scores that the distance explains.

    .. math::
        1 - \frac{\sum_{m,n} (s_{mn} - \bar{s}_{m-n})^2}{\sum_{m,n} (s_{mn} - \bar{s})^2}

    with the mean over a diagonal and the overall mean. If it is 1, scores are functions of m - n,
    so the scheme is relative; near 0, they depend on the absolute positions.

    Args:
        scores: [..., T, S].

    Returns:
        [...] float32; 1 if all scores are equal.
    """
    assert_axes(scores=(scores, "... T S"))
    assert_floating(scores=scores)
    queries, keys = scores.shape[-2:]
    distance_TS = np.arange(keys)[None, :] - np.arange(queries)[:, None] + queries - 1
    counts = np.bincount(distance_TS.ravel())
    scores = jnp.asarray(scores, jnp.float32)
    centred = scores - jnp.mean(scores, axis=(-2, -1), keepdims=True)
    sums = jnp.zeros((*scores.shape[:-2], counts.size)).at[..., distance_TS].add(centred)
    means = sums / counts.reshape((1,) * (sums.ndim - 1) + (-1,))
    rest = centred - means[..., distance_TS]
    left, total = (jnp.sum(jnp.square(x), axis=(-2, -1)) for x in (rest, centred))
    # The remainder for equal scores is rounding error.
    constant = total <= (1e-6**2) * jnp.sum(jnp.square(scores), axis=(-2, -1))
    return jnp.where(constant, 1.0, 1 - left / jnp.where(constant, 1.0, total))


def step_sizes(codes: jax.Array) -> jax.Array:
    r"""Returns the distance of each code from the next, `|c_{p+1} - c_p|`.

    The square is the number of digits that change in a binary code: k + 1 from `2^k - 1` to `2^k`.

    Args:
        codes: [P, C], the codes of successive positions.

    Returns:
        [P - 1] float32.
    """
    assert_axes(codes=(codes, "P C"))
    assert_floating(codes=codes)
    return jnp.linalg.norm(jnp.diff(jnp.asarray(codes, jnp.float32), axis=0), axis=-1)


def first_collision(codes: jax.Array, tolerance: float) -> tuple[int, int] | None:
    """Returns the first position whose code equals an earlier one.

    Args:
        codes: [P, C], the codes of successive positions, in the precision of interest.
        tolerance: The largest difference per channel at which two codes count as equal.

    Returns:
        The position and the earlier one, or None if all P codes differ.

    Raises:
        ArgumentError: `tolerance` is negative.
    """
    assert_axes(codes=(codes, "P C"))
    assert_floating(codes=codes)
    check_numbers(tolerance=(tolerance, NOT_NEGATIVE))
    exact = np.asarray(codes).astype(np.float64)
    for start in range(0, len(exact), _ROWS):
        rows = exact[start : start + _ROWS]
        earlier = np.arange(len(exact))[None] < np.arange(start, start + len(rows))[:, None]
        near = earlier
        for channel in range(exact.shape[1]):
            near = near & (np.abs(rows[:, None, channel] - exact[None, :, channel]) <= tolerance)
            if not near.any():
                break
        if near.any():
            row = int(near.any(axis=1).argmax())
            return start + row, int(near[row].argmax())
    return None
