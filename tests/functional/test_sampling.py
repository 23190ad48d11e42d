import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec
from scipy.stats import chi2

from jaxformer.functional import (
    ban_tokens,
    force_token,
    greedy,
    min_p_filter,
    sample,
    scale_temperature,
    token_log_probabilities,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from jaxformer.functional.sampling.speculative import accept_by_chance, accept_greedily

seeds = st.integers(0, 2**31)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(scale=3, size=shape).astype(np.float32)


def warped(warper, logits):
    import torch

    return warper(None, torch.tensor(logits)).numpy()


@pytest.mark.torch
@given(seed=seeds, temperature=st.floats(0.1, 5))
def test_temperature_equals_transformers(seed, temperature):
    from transformers.generation import TemperatureLogitsWarper

    logits = normal(seed, 4, 37)
    expected = warped(TemperatureLogitsWarper(temperature), logits)
    np.testing.assert_allclose(scale_temperature(logits, temperature), expected, rtol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("function", "warper", "limits", "ties"),
    [
        (top_k_filter, "TopKLogitsWarper", st.integers(1, 50), True),
        (top_p_filter, "TopPLogitsWarper", st.floats(0, 1), False),
        (min_p_filter, "MinPLogitsWarper", st.floats(0, 1), False),
        (typical_filter, "TypicalLogitsWarper", st.floats(0.01, 0.99), False),
    ],
)
@given(seed=seeds, data=st.data(), excluded=st.integers(0, 30))
def test_filters_equal_those_of_transformers(function, warper, limits, ties, seed, data, excluded):
    from transformers import generation

    logits, limit = normal(seed, 4, 37), data.draw(limits)
    logits = np.round(logits) if ties else logits
    logits[:, :excluded] = -np.inf
    expected = warped(getattr(generation, warper)(limit), logits)
    np.testing.assert_array_equal(function(jnp.asarray(logits), limit), expected)


def test_typical_may_leave_out_the_most_probable_token():
    # The entropy is 1.6 nats; tokens of surprise 2.3 are nearer to it than one of surprise 0.5.
    logits = jnp.log(jnp.array([0.6] + [0.1] * 2 + [0.02] * 10))
    kept = jnp.isfinite(typical_filter(logits, 0.15))
    np.testing.assert_array_equal(kept, [False, True, True] + [False] * 10)


def test_top_p_keeps_every_token_tied_with_the_last_one():
    logits = jnp.log(jnp.array([0.1, 0.4, 0.1, 0.3, 0.1]))
    kept = jnp.isfinite(top_p_filter(logits, 0.75))
    np.testing.assert_array_equal(kept, [True] * 5)
    kept = jnp.isfinite(top_p_filter(logits, 0.65))
    np.testing.assert_array_equal(kept, [False, True, False, True, False])


@given(seed=seeds)
def test_every_filter_can_leave_a_single_token(seed):
    logits = jnp.asarray(normal(seed, 3, 19))
    for filtered in (
        top_k_filter(logits, 1),
        top_p_filter(logits, 0.0),
        min_p_filter(logits, 1.0),
        typical_filter(logits, 0.0),
    ):
        np.testing.assert_array_equal(jnp.sum(jnp.isfinite(filtered), axis=-1), 1)
    for filtered in (top_k_filter(logits, 1), top_p_filter(logits, 0.0), min_p_filter(logits, 1.0)):
        np.testing.assert_array_equal(greedy(filtered), greedy(logits))


def test_excluded_tokens_stay_excluded_by_the_next_filter():
    logits = jnp.asarray(normal(0, 2, 19))
    few = top_k_filter(logits, 5)
    for filtered in (
        top_p_filter(few, 1.0),
        top_p_filter(few, 0.5),
        min_p_filter(few, 0.0),
        typical_filter(few, 1.0),
    ):
        assert not jnp.any(jnp.isfinite(filtered) & ~jnp.isfinite(few))


def test_greedy_takes_the_first_of_a_tie():
    tokens = greedy(jnp.array([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]], jnp.bfloat16))
    np.testing.assert_array_equal(tokens, [1, 0])
    assert tokens.dtype == jnp.int32


def test_banned_tokens_are_excluded_and_no_others():
    logits = jnp.asarray(normal(0, 2, 3, 5))
    banned = ban_tokens(logits, (0, 3, 3))
    np.testing.assert_array_equal(banned[..., [1, 2, 4]], logits[..., [1, 2, 4]])
    assert jnp.all(jnp.isneginf(banned[..., [0, 3]]))
    np.testing.assert_array_equal(ban_tokens(logits, ()), logits)


def test_a_forced_token_is_the_only_choice_even_where_it_was_excluded():
    forced = force_token(jnp.array([[1.0, -jnp.inf, 2.0], [0.0, 1.0, -jnp.inf]]), 1)
    np.testing.assert_array_equal(forced, [[-np.inf, 0, -np.inf]] * 2)


def test_log_probabilities_are_those_of_the_tokens_and_minus_infinity_where_excluded():
    logits = normal(0, 2, 3, 7)
    logits[0, 0, 4] = -np.inf
    tokens = np.array([[4, 0, 6], [1, 2, 3]])
    expected = np.take_along_axis(
        np.asarray(jax.nn.log_softmax(logits)), tokens[..., None], axis=-1
    )[..., 0]
    actual = token_log_probabilities(jnp.asarray(logits, jnp.float32), jnp.asarray(tokens))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert np.isneginf(actual[0, 0])


# The draw ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filter_logits",
    [
        lambda x: x,
        lambda x: scale_temperature(x, 0.5),
        lambda x: top_k_filter(scale_temperature(x, 2.0), 4),
        lambda x: top_p_filter(x, 0.8),
        lambda x: min_p_filter(x, 0.1),
        lambda x: typical_filter(x, 0.6),
    ],
)
def test_samples_follow_the_distribution(key, filter_logits):
    from scipy.stats import chisquare

    count, logits = 20_000, jnp.linspace(1, -2, 9)
    tokens = jax.jit(lambda keys, logits: sample(keys, filter_logits(logits)))(
        jax.random.split(key, count), jnp.broadcast_to(logits[None], (count, 9))
    )
    expected = np.asarray(jax.nn.softmax(filter_logits(logits)), np.float64)
    observed = np.bincount(tokens, minlength=9)
    allowed = expected > 0
    assert np.all(observed[~allowed] == 0)
    frequencies = expected[allowed] / expected[allowed].sum() * count
    assert frequencies.min() > 5
    assert chisquare(observed[allowed], frequencies).pvalue > 1e-3


@given(seed=seeds)
def test_a_row_is_drawn_as_if_it_were_alone(seed):
    logits = jnp.asarray(normal(seed, 2, 3, 131))
    keys = jax.random.split(jax.random.key(seed), (2, 3))
    tokens = sample(keys, logits)
    assert tokens.dtype == jnp.int32
    np.testing.assert_array_equal(jax.jit(sample)(keys, logits), tokens)
    for row in np.ndindex(2, 3):
        assert jax.jit(sample)(keys[row], logits[row]) == tokens[row]


def test_rows_that_share_key_and_logits_draw_the_same(key):
    logits = jnp.broadcast_to(jnp.asarray(normal(0, 131))[None], (5, 131))
    tokens = sample(jnp.broadcast_to(key, (5,)), logits)
    assert len(set(tokens.tolist())) == 1


@pytest.mark.parametrize("spec", [("data", None), (None, "tensor")])
def test_a_draw_in_a_mesh_is_that_of_one_device(key, spec):
    logits, keys = jnp.asarray(normal(0, 8, 16)), jax.random.split(key, 8)
    expected = sample(keys, logits), token_log_probabilities(logits, jnp.arange(8))
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        placed = jax.device_put(logits, PartitionSpec(*spec))
        np.testing.assert_array_equal(jax.jit(sample)(keys, placed), expected[0])
        actual = jax.jit(token_log_probabilities)(placed, jnp.arange(8))
    np.testing.assert_allclose(actual, expected[1], rtol=1e-6)


# Proposals of a smaller model ---------------------------------------------------------------------

ROWS, VOCAB, PROPOSALS = 20_000, 5, 2


@jax.jit
def drawn(seed, count, draft, target):
    """Proposals from the draft's distributions, and what is made of them."""
    keys = jax.random.split(jax.random.key(seed), (2, ROWS, PROPOSALS + 1))
    draw = jax.vmap(jax.vmap(jax.random.categorical))
    draft, target = (jnp.broadcast_to(x, (ROWS, *x.shape)) for x in (draft, target))
    tokens = draw(keys[0, :, :-1], draft)
    return tokens, accept_by_chance(keys[1], tokens, jnp.full(ROWS, count), draft, target)


@pytest.mark.parametrize("count", range(PROPOSALS + 1))
def test_what_stands_is_distributed_as_the_model_says(count):
    draft, target = normal(0, PROPOSALS, VOCAB) / 2, normal(1, PROPOSALS + 1, VOCAB) / 2
    tokens, verdict = jax.device_get(drawn(2, count, draft, target))
    assert verdict.accepted.max() == count
    written = np.concatenate([tokens, np.full((ROWS, 1), -1)], axis=1)
    written[np.arange(ROWS), verdict.accepted] = verdict.replacement
    probabilities = np.asarray(jax.nn.softmax(target, axis=-1))
    for place in range(count + 1):
        # Here places are independent: those that are reached are a fair sample of each.
        found = written[verdict.accepted >= place, place]
        expected = len(found) * probabilities[place]
        statistic = np.sum((np.bincount(found, minlength=VOCAB) - expected) ** 2 / expected)
        assert statistic < chi2.ppf(0.999, VOCAB - 1)
        if place < count:
            q = np.asarray(jax.nn.softmax(draft[place]))
            rate = np.minimum(probabilities[place], q).sum()
            accepts = np.mean(verdict.accepted[verdict.accepted >= place] > place)
            assert abs(accepts - rate) < 0.02


def test_the_models_own_proposals_are_all_accepted():
    target = normal(3, PROPOSALS + 1, VOCAB) / 2
    _, verdict = drawn(4, PROPOSALS, target[:-1], target)
    assert np.all(verdict.accepted == PROPOSALS)


def test_what_excludes_a_token_excludes_it_from_proposals_and_replacements():
    target = normal(3, PROPOSALS + 1, VOCAB) / 2
    target[:, 1:] = -np.inf
    tokens, verdict = jax.device_get(drawn(4, PROPOSALS, normal(5, PROPOSALS, VOCAB) / 2, target))
    stands = np.arange(PROPOSALS) < verdict.accepted[:, None]
    assert np.all(tokens[stands] == 0)
    assert np.all(verdict.replacement == 0)


def test_greedy_proposals_stand_up_to_the_first_other_token():
    best = jnp.array([[3, 1, 4], [3, 1, 4], [3, 1, 4], [3, 1, 4], [3, 1, 4]])
    tokens = jnp.array([[3, 1], [3, 2], [2, 1], [3, 1], [3, 1]])
    count = jnp.array([2, 2, 2, 1, 0])
    verdict = jax.jit(accept_greedily)(tokens, count, jax.nn.one_hot(best, VOCAB))
    assert verdict.accepted.tolist() == [2, 1, 0, 1, 0]
    assert verdict.replacement.tolist() == [4, 1, 3, 1, 3]
