"""Assertions about positional schemes, for tests of the library's, your own, and whole models."""

from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.attention.api import attention
from jaxformer.functional.positions.base import Position

# The angles of a float32 product of position and frequency are wrong by 0.03 rad at the second.
SHIFTS = (1, 1_000_003)

# A score beside |q| |k|: two pairs of angles of 3e-7 rad each, and roundings of 6e-8 in their
# cosines and sines and in the rotation.
_ROUNDING = 2e-6


def assert_relative(
    scheme: Position,
    query: jax.Array,
    key: jax.Array,
    query_positions: jax.Array,
    key_positions: jax.Array,
    *,
    table: jax.Array | None = None,
) -> None:
    r"""Asserts that the attention scores depend only on the distances between positions.

    .. math:: \langle R_m q, R_n k \rangle + b(m, n) = g(q, k, m - n)

    where R is `scheme.rotate` and b is `scheme.bias`: both are called at the positions and at
    shifted ones, and so is `attention()` with them; `scheme.embed` may not tell positions apart. A
    scheme that depends on the length of a sequence is told the same length throughout.

    Args:
        scheme: The scheme.
        query: `[B, T, N, H]`, computed with in float32.
        key: `[B, S, K, H]` with N a multiple of K.
        query_positions: int `[B or 1, T]`; with `key_positions` at several distances.
        key_positions: int `[B or 1, S]`.
        table: The learned table, if the scheme has one, for a model of width N H.

    Raises:
        AssertionError: The scheme is not relative; or the shapes do not fit together.
        ArgumentError: The last position is the last of the scheme's, which leaves none to shift to.

    References:
        Su et al., 2021 (equation 11), https://arxiv.org/abs/2104.09864
    """
    sizes = assert_axes(
        query=(query, "B T N H"),
        key=(key, "B S K H"),
        query_positions=(query_positions, "B/1 T"),
        key_positions=(key_positions, "B/1 S"),
    )
    last = int(jnp.maximum(jnp.max(query_positions), jnp.max(key_positions)))
    end = np.inf if scheme.max_length is None else scheme.max_length - 1
    check_argument(
        "query_positions, key_positions", last, last < end, f"below {end}, the last of {scheme}"
    )
    shifts = [shift for shift in SHIFTS if last + shift <= end]
    lengths = jnp.full(sizes["B"], last + 1)
    query, key = (jnp.asarray(x, jnp.float32) for x in (query, key))
    rotated = scheme.rotate(query, key, query_positions, key_positions, lengths)
    # Such that no score is above 1.
    norms = (jnp.max(jnp.linalg.norm(x, axis=-1)) for x in rotated)
    query, key = (x / norm for x, norm in zip((query, key), norms, strict=True))
    for name, (function, atol) in _functions_of(scheme, query, key, lengths, table).items():
        assert_shift_invariant(
            function,
            query_positions,
            key_positions,
            atol=atol,
            shifts=shifts,
            name=f"{name} of {scheme}",
        )


def _functions_of(scheme, query, key, lengths, table) -> dict[str, tuple[Callable, float]]:
    """All that the scheme makes of the positions of queries and keys, and its rounding."""
    num_heads, num_kv_heads = query.shape[2], key.shape[2]

    def embedded(query_positions, key_positions):
        del key_positions
        return scheme.embed(query.reshape(*query.shape[:2], -1), query_positions, table)

    def rotated(*positions):
        return scheme.rotate(query, key, *positions, lengths)

    def bias(*positions):
        return scheme.bias(*positions, num_heads=num_heads, table=table)

    def products(*positions):
        # In float64, so that the sums themselves add no rounding.
        query, key = (np.asarray(x, np.float64) for x in rotated(*positions))
        return np.einsum("btnh,bsnh->bnts", query, key.repeat(num_heads // num_kv_heads, axis=2))

    def biases(*positions):
        found = bias(*positions)
        return None if found is None else found.values()

    def attended(*positions):
        options = {"bias": bias(*positions), "scale": 1.0, "implementation": "reference"}
        value = key / jnp.max(jnp.abs(key))
        with jax.default_matmul_precision("highest"):
            return attention(*rotated(*positions), value, **options)

    # Those of scores, which move weights, and of the sums of H products and of S.
    sums = float(jnp.finfo(jnp.float32).eps) * (2 * query.shape[3] + key.shape[1])
    return {
        "embed": (embedded, 0.0),
        "rotate": (products, _ROUNDING),
        "bias": (biases, 0.0),
        "attention": (attended, 2 * _ROUNDING + sums),
    }


def assert_shift_invariant(
    function: Callable[..., Any],
    *positions: jax.Array,
    atol: float,
    shifts: Sequence[int] = SHIFTS,
    name: str = "function",
) -> None:
    r"""Asserts that a function of positions stays the same when all of them are shifted.

    .. math:: f(m + c, n + c) = f(m, n)

    This is what a decoder with relative positions does: `assert_shift_invariant(lambda positions:
    decoder(inputs, positions=positions), positions, atol=1e-5)`.

    Args:
        function: Takes the positions, gives an array or a tree of them.
        *positions: int arrays, all shifted alike.
        atol: The tolerance, for the rounding of the function.
        shifts: The distances c, the same for all tokens.
        name: What the message calls the function.

    Raises:
        AssertionError: The values differ.
    """
    expected = function(*positions)
    chex.assert_tree_all_finite(expected, custom_message=f"{name} of unshifted positions")
    for shift in shifts:
        chex.assert_trees_all_close(
            function(*(x + shift for x in positions)),
            expected,
            rtol=0,
            atol=atol,
            custom_message=f"{name} changes when all positions are shifted by {shift}",
        )
