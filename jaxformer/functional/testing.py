"""Assertions for tests of built-in or user-defined positional schemes and of whole models."""

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

# At the second, angles from a float32 product of position and frequency are off by 0.03 rad.
SHIFTS = (1, 1_000_003)

# The error of a score relative to |q| |k|: 3e-7 rad for each of two pairs of angles, and rounding
# errors of 6e-8 in their cosines and sines and in the rotation.
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

    where R is `scheme.rotate` and b is `scheme.bias`: both, and `attention()` with them, are called
    at the positions and at shifted ones; `scheme.embed` must not depend on positions. A scheme that
    depends on the sequence length gets the same length throughout.

    Args:
        scheme: The scheme.
        query: `[B, T, N, H]`, converted to float32.
        key: `[B, S, K, H]` with N a multiple of K.
        query_positions: int `[B or 1, T]`; with `key_positions`, they must cover several distances.
        key_positions: int `[B or 1, S]`.
        table: The learned table, if the scheme has one, for a model of width N H.

    Raises:
        AssertionError: The scheme is not relative, or shapes do not fit together.
        ArgumentError: The last position is the scheme's maximum, which leaves no room for shifts.

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
    # Normalizes such that no score is above 1.
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
    """Returns all results of the scheme as functions of positions, and their rounding errors."""
    num_heads, num_kv_heads = query.shape[2], key.shape[2]

    def embedded(query_positions, key_positions):
        del key_positions
        return scheme.embed(query.reshape(*query.shape[:2], -1), query_positions, table)

    def rotated(*positions):
        return scheme.rotate(query, key, *positions, lengths)

    def bias(*positions):
        return scheme.bias(*positions, num_heads=num_heads, table=table)

    def products(*positions):
        # In float64, so that the sums do not add rounding errors.
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

    # The errors of scores, which affect the weights, and of the sums over H and S.
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
    r"""Asserts that a function of positions is invariant to shifting all of them.

    .. math:: f(m + c, n + c) = f(m, n)

    A decoder with relative positions has this property: `assert_shift_invariant(lambda positions:
    decoder(inputs, positions=positions), positions, atol=1e-5)`.

    Args:
        function: Maps the positions to an array or a pytree of arrays.
        *positions: int arrays, all shifted by the same distance.
        atol: The absolute tolerance, for rounding errors.
        shifts: The distances c, the same for all tokens.
        name: The name of the function in the message.

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
