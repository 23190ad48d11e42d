"""Disentangled attention: what the paper says, in blocks too, and a function of distances alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import BATCH, BOTH, arrays, assert_trees_close, random_mask
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional import (
    DistanceEmbedding,
    DistanceTerms,
    KeyPadding,
    LayerNorm,
    attention,
    distance_scores,
    log_bucket,
)

pytestmark = pytest.mark.more

TERMS = ("both", "keys", "queries")


def vectors(length, num_keys, heads, width=4, which="both", seed=3):
    """Random vectors for all distances, as keys and as queries."""
    random, count = np.random.default_rng(seed), length + num_keys - 1
    of_queries, of_keys = (
        jnp.asarray(random.normal(size=(count, n, width)), jnp.float32) for n in heads
    )
    return (
        None if which == "queries" else of_keys,
        None if which == "keys" else of_queries,
    )


def as_the_paper_says(query, key, of_keys, of_queries):
    """Equation 2 without its first term, one pair of a query and a key after the other."""
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    (batch, length, num_heads, _), num_keys = query.shape, key.shape[1]
    groups = num_heads // key.shape[2]
    found = np.zeros((batch, num_heads, length, num_keys))
    for b, n, i, j in np.ndindex(found.shape):
        distance, kv = j - i + length - 1, n // groups
        if of_keys is not None:
            found[b, n, i, j] += query[b, i, n] @ np.asarray(of_keys)[distance, kv]
        if of_queries is not None:
            found[b, n, i, j] += key[b, j, kv] @ np.asarray(of_queries)[distance, n]
    return found


@pytest.mark.parametrize("which", TERMS)
@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (1, 4), (4, 1), (1, 1)])
def test_scores_are_those_of_the_paper(lengths, which):
    query, key, *_ = arrays(*lengths, heads=(6, 2))
    given_vectors = vectors(*lengths, (6, 2), which=which)
    actual = distance_scores(query, key, *given_vectors)
    expected = as_the_paper_says(query, key, *given_vectors)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@partial(jax.jit, static_argnums=(0, 1))
def value_and_gradients(implementation, options, inputs, terms, cotangent, mask):
    def output(inputs, terms):
        distances = DistanceTerms(*terms, inputs[0].shape[1])
        key = jax.random.key(5)
        return attention(
            *inputs,
            mask=mask,
            distances=distances,
            dropout_key=key,
            implementation=implementation,
            **dict(options),
        )

    value, pull = jax.vjp(output, inputs, terms)
    return value, pull(cotangent)


@pytest.mark.first("*left padding*")
@pytest.mark.parametrize("kind", ["none", "left padding", "segments", "window", "dense"])
@pytest.mark.parametrize(("lengths", "which"), [((300, 270), "both"), ((37, 530), "keys")])
@pytest.mark.quick("*both-left padding")
def test_blocks_are_what_the_whole_is(lengths, which, kind):
    *inputs, cotangent = map(jnp.asarray, arrays(*lengths, heads=(6, 2)))
    terms, mask = vectors(*lengths, (6, 2), which=which), random_mask(kind, *lengths)
    options = (("scale", 0.3), ("softcap", 4.0), ("dropout_rate", 0.2))
    problem = (options, tuple(inputs), terms, cotangent, mask)
    expected = value_and_gradients("reference", *problem)
    assert_trees_close(value_and_gradients("blockwise", *problem), expected, 1e-5)


@BOTH
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.quick("left-blockwise", "right-reference")
def test_padding_changes_nothing(implementation, side):
    """Also on the left, where it moves all tokens: only distances count."""
    inputs = [jnp.asarray(x) for x in arrays(20, 20)[:3]]
    table = DistanceEmbedding(6)
    of_rows = [jax.random.normal(jax.random.key(n), (12, 2, 4)) for n in range(2)]

    def found(inputs, mask):
        length = inputs[0].shape[1]
        rows = table.rows(length, length)
        distances = DistanceTerms(*(x[rows] for x in of_rows), length)
        return attention(*inputs, mask=mask, distances=distances, implementation=implementation)

    amount = ((0, 0), (9, 0) if side == "left" else (0, 9), (0, 0), (0, 0))
    padded = [jnp.pad(x, amount, constant_values=7.0) for x in inputs]
    real = np.pad(np.ones((1, 20), bool), amount[:2])
    actual = found(padded, KeyPadding(jnp.asarray(real)))[:, real[0]]
    assert_trees_close(actual, found(inputs, None), 1e-6)


def test_bfloat16_is_close_to_float32():
    *inputs, cotangent = map(jnp.asarray, arrays(130, 130, widths=(16, 16)))
    terms = vectors(130, 130, (2, 2), width=16)
    expected = value_and_gradients("blockwise", (), tuple(inputs), terms, cotangent, None)
    lower = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (tuple(inputs), terms, cotangent))
    actual = value_and_gradients("blockwise", (), *lower, None)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert x.dtype == jnp.bfloat16
        error = np.linalg.norm(np.asarray(x - y, np.float32))
        assert error <= 0.03 * np.linalg.norm(y)


def test_each_device_has_its_own_heads_and_rows():
    *inputs, cotangent = map(jnp.asarray, arrays(20, 137, heads=(4, 2)))
    inputs = [jnp.concatenate([x, x[::-1]]) for x in inputs]
    cotangent = jnp.concatenate([cotangent, 2 * cotangent])
    terms = vectors(20, 137, (4, 2))
    problem = ("blockwise", (("dropout_rate", 0.2),))
    expected = value_and_gradients(*problem, tuple(inputs), terms, cotangent, None)
    axes = ("data", "fsdp", "tensor")
    mesh = jax.make_mesh((2, 2, 2), axes, axis_types=(jax.sharding.AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        spec = jax.P(("data", "fsdp"), None, "tensor", None)
        placed = jax.device_put((tuple(inputs), cotangent), jax.NamedSharding(mesh, spec))
        heads = jax.NamedSharding(mesh, jax.P(None, "tensor", None))
        of_heads = jax.device_put(terms, heads)
        actual = value_and_gradients(*problem, placed[0], of_heads, placed[1], None)
    assert_trees_close(actual, expected, 1e-5)
    assert actual[0].shape[0] == 2 * BATCH
    assert all(x.sharding == heads for x in jax.tree.leaves(actual[1][1]))


# Distances ----------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(256, 512), (4, 4), (6, 9), (32, 77)])
def test_buckets_are_those_of_transformers(num_buckets, max_distance):
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distance = np.arange(-3 * max_distance, 3 * max_distance + 1)
    theirs = make_log_bucket_position(torch.tensor(distance), num_buckets, max_distance)
    expected = theirs.long().numpy().clip(-num_buckets, num_buckets - 1)
    sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
    on_host, on_device = log_bucket(distance, **sizes), log_bucket(jnp.asarray(distance), **sizes)
    assert isinstance(on_host, np.ndarray)
    assert isinstance(on_device, jax.Array)
    np.testing.assert_array_equal(on_host, expected)
    np.testing.assert_array_equal(on_device, expected)


@given(
    half=st.integers(2, 40),
    more=st.integers(2, 500),
    lengths=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_rows_follow_the_distance(half, more, lengths):
    for scheme in (
        DistanceEmbedding(half),
        DistanceEmbedding(half + more, 2 * half, norm=LayerNorm()),
    ):
        rows = scheme.rows(*lengths)
        (count, _), _ = scheme.table(model_dim=8, num_heads=2)
        assert rows.shape == (sum(lengths) - 1,)
        assert rows.min() >= 0
        assert rows.max() < count
        assert np.all(np.diff(rows) <= 0)
        # Near distances have a row each.
        distance = np.arange(lengths[0] - 1, -lengths[1], -1)
        near = np.abs(distance) <= half // 2
        np.testing.assert_array_equal(rows[near], distance[near] + count // 2)
