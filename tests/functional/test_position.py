"""The one interface of the positional schemes: identity defaults, what each does, blocks."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from position_cases import IDS, LONGROPE, SCHEMES, B, D, H, N, S, T, arrays, outputs, table_of

from jaxformer.functional import (
    ALiBi,
    Bias,
    Binary,
    DynamicNTK,
    Integer,
    Learned,
    LinearScaling,
    NoPosition,
    PatchBias,
    Position,
    RoPE,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
    alibi_bias,
    alibi_slopes,
    apply_rope,
    binary_code,
    inverse_frequencies,
    sinusoidal_code,
    sinusoidal_grid_code,
    t5_bias,
)


@pytest.mark.parametrize("scheme", [Position(), NoPosition()])
def test_defaults_are_the_identity(scheme):
    a = arrays()
    embedded, rotated, bias = outputs(scheme, None, **a)
    assert embedded is a["x"]
    assert rotated == (a["query"], a["key"])
    assert bias is None
    assert scheme.table(model_dim=D, num_heads=N) is None
    assert scheme.max_length is None
    scheme.validate_length(10**9)
    scheme.validate_sizes(model_dim=3, head_dim=3)


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_each_scheme_does_exactly_one_thing(scheme):
    a = arrays()
    embedded, (query, key), bias = jax.jit(partial(outputs, scheme))(table_of(scheme), **a)
    changed = [
        not np.array_equal(embedded, a["x"]),
        not (np.array_equal(query, a["query"]) and np.array_equal(key, a["key"])),
        bias is not None,
    ]
    chex.assert_equal_shape([embedded, a["x"]])
    chex.assert_equal_shape([query, a["query"]])
    chex.assert_equal_shape([key, a["key"]])
    assert sum(changed) == (0 if isinstance(scheme, NoPosition) else 1)


def test_embeddings_are_what_they_say():
    a = arrays()
    x, positions = a["x"], a["query_positions"]
    added = Integer(max_length=32).embed(x, positions) - x
    np.testing.assert_allclose(added[..., 0], positions / 32, atol=1e-6)
    np.testing.assert_array_equal(added[..., 1:], 0)
    added = Binary(num_bits=5).embed(x, positions) - x
    np.testing.assert_allclose(added[..., :5], binary_code(positions, num_bits=5), atol=1e-6)
    np.testing.assert_array_equal(added[..., 5:], 0)
    for layout in ("interleaved", "half"):
        code = sinusoidal_code(positions, model_dim=D, theta=100.0, layout=layout)
        embedded = Sinusoidal(theta=100.0, layout=layout).embed(x, positions)
        np.testing.assert_array_equal(embedded, x + code)
    scheme = Sinusoidal(theta=100.0, layout="half", endpoint=True, offset=2)
    options = {"model_dim": D, "theta": 100.0, "layout": "half", "endpoint": True}
    code = sinusoidal_code(positions + 1, **options)
    code = jnp.where(positions[..., None] == 0, 0.0, code)
    np.testing.assert_array_equal(scheme.embed(x, positions - 1), x + code)
    scheme, places = Sinusoidal2D(grid=(5, 7), theta=100.0, prefix=3), np.asarray(positions)
    code = sinusoidal_grid_code(
        jnp.asarray((places - 3) // 7), jnp.asarray((places - 3) % 7), model_dim=D, theta=100.0
    )
    code = jnp.where((places < 3)[..., None], 0.0, code)
    assert 0 < (places < 3).sum() < places.size
    np.testing.assert_array_equal(scheme.embed(x, positions), x + code)
    scheme = Learned(max_length=32)
    table = table_of(scheme)
    np.testing.assert_array_equal(scheme.embed(x, positions, table), x + table[positions])


@pytest.mark.parametrize("scheme", SCHEMES[1:7], ids=IDS[1:7])
def test_embed_keeps_bfloat16_and_takes_one_row_of_positions(scheme):
    x = arrays()["x"].astype(jnp.bfloat16)
    positions = jnp.arange(T)[None]
    embedded = scheme.embed(x, positions, table_of(scheme))
    chex.assert_shape(embedded, (B, T, D))
    chex.assert_type(embedded, jnp.bfloat16)
    tiled = scheme.embed(x, jnp.tile(positions, (B, 1)), table_of(scheme))
    np.testing.assert_array_equal(embedded, tiled)


@pytest.mark.more
@pytest.mark.parametrize("max_length", [2, 9, 300])
def test_embedding_codes_survive_a_layer_norm(max_length):
    """A code that shifts all channels alike would vanish, and with it the order of the words."""
    for scheme in (
        Integer(max_length),
        Binary(num_bits=max(1, (max_length - 1).bit_length())),
        Sinusoidal(),
    ):
        code = scheme.embed(jnp.zeros((1, max_length, D)), jnp.arange(max_length)[None])
        centred = np.asarray(code - code.mean(-1, keepdims=True))[0]
        assert len(np.unique(centred.round(4), axis=0)) == max_length


def test_rope_rotates_by_fraction_layout_and_scaling():
    a = arrays()
    scheme = RoPE(theta=100.0, fraction=0.5, layout="interleaved", scaling=LinearScaling(2.0))
    query, key = scheme.rotate(a["query"], a["key"], a["query_positions"], a["key_positions"])
    frequencies = inverse_frequencies(100.0, 4) / np.float32(2)
    expected = apply_rope(a["query"], a["query_positions"], frequencies, layout="interleaved")
    np.testing.assert_array_equal(query, expected)
    expected = apply_rope(a["key"], a["key_positions"], frequencies, layout="interleaved")
    np.testing.assert_array_equal(key, expected)
    assert [RoPE(fraction=0.29).rotary_dim(100), RoPE(fraction=0.25).rotary_dim(64)] == [28, 16]


@pytest.mark.parametrize("scaling", [DynamicNTK(2.0, 8), LONGROPE])
def test_length_is_the_largest_position_of_queries_and_keys(scaling):
    scheme = RoPE(fraction=0.5, scaling=scaling)
    ones = jnp.ones((1, 1, 1, H))

    def rotated_query(query_position, key_position):
        query_at, key_at = jnp.array([[query_position]]), jnp.array([[key_position]])
        return jax.jit(scheme.rotate)(ones, ones, query_at, key_at)[0]

    short, limit, long = (rotated_query(3, k) for k in (3, 7, 8))
    np.testing.assert_array_equal(short, limit)
    assert np.abs(long - short).max() > 1e-3


@pytest.mark.parametrize("scheme", [ALiBi(), T5Bias(bidirectional=True)])
def test_bias_is_the_pure_function(scheme):
    a = arrays()
    positions = a["query_positions"], a["key_positions"]
    table = table_of(scheme)
    bias = scheme.bias(*positions, num_heads=N, table=table)
    if table is None:
        expected = alibi_bias(alibi_slopes(N), *positions)
    else:
        expected = t5_bias(table, *positions, bidirectional=True, max_distance=128)
    np.testing.assert_array_equal(bias.values(), expected)
    assert bias.heads.shape[-1] == N


@given(
    scheme=st.sampled_from(
        [
            ALiBi(),
            T5Bias(bidirectional=True),
            T5Bias(8, 20, bidirectional=False),
            PatchBias((9, 11)),
        ]
    ),
    query_start=st.integers(0, 7),
    key_start=st.integers(0, 9),
    rows=st.sampled_from([1, 3]),
)
@pytest.mark.slow
def test_block_is_a_slice_of_the_values(scheme, query_start, key_start, rows):
    queries = jax.random.randint(jax.random.key(1), (rows, 10), 0, 100)
    keys = jax.random.randint(jax.random.key(2), (1, 14), 0, 100)
    bias = scheme.bias(queries, keys, num_heads=N, table=table_of(scheme))

    @jax.jit
    def block(bias, query_start, key_start):
        return bias.block(query_start, 3, key_start, 5).values()

    whole = bias.values()
    chex.assert_shape(whole, (rows, N, 10, 14))
    expected = whole[:, :, query_start : query_start + 3, key_start : key_start + 5]
    np.testing.assert_array_equal(block(bias, query_start, key_start), expected)


def test_bias_is_a_pytree_whose_scheme_is_static():
    a = arrays()
    bias = ALiBi().bias(a["query_positions"], a["key_positions"], num_heads=N)
    leaves, treedef = jax.tree.flatten(bias)
    assert len(leaves) == 3
    rebuilt = jax.tree.unflatten(treedef, leaves)
    assert isinstance(rebuilt, Bias)
    assert rebuilt.scheme == ALiBi()
    np.testing.assert_array_equal(jax.jit(Bias.values)(bias), bias.values())


@pytest.mark.more
@pytest.mark.parametrize("scheme", [ALiBi(), T5Bias(bidirectional=True), PatchBias((5, 7))])
@pytest.mark.quick("scheme1")
def test_gradients_reach_the_heads_and_blocks_add_up(scheme):
    a = arrays()
    bias = scheme.bias(
        a["query_positions"], a["key_positions"], num_heads=N, table=table_of(scheme)
    )
    weights = jax.random.normal(jax.random.key(3), (B, N, T, S))

    def whole(heads):
        return jnp.sum(jnp.sin(dataclasses.replace(bias, heads=heads).values()) * weights)

    def in_blocks(heads):
        all_of = dataclasses.replace(bias, heads=heads)
        halves = (all_of.block(start, T // 2, 0, S).values() for start in (0, T // 2))
        return jnp.sum(jnp.sin(jnp.concatenate(list(halves), axis=2)) * weights)

    gradient = jax.grad(whole)(bias.heads)
    assert float(jnp.abs(gradient).max()) > 0
    np.testing.assert_allclose(jax.grad(in_blocks)(bias.heads), gradient, rtol=1e-5, atol=1e-5)


def test_a_missing_table_is_an_error():
    a = arrays()
    with pytest.raises(ValueError, match="needs its learned table"):
        Learned(32).embed(a["x"], a["query_positions"])
    with pytest.raises(ValueError, match="needs its learned table"):
        T5Bias(bidirectional=True).bias(a["query_positions"], a["key_positions"], num_heads=N)
