import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.errors import ConfigError
from jaxformer.functional.sampling import (
    greedy,
    min_p_filter,
    sample,
    scale_temperature,
    top_k_filter,
    top_p_filter,
)

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
@given(seed=seeds, top_k=st.integers(1, 50))
def test_top_k_equals_transformers_with_ties(seed, top_k):
    from transformers.generation import TopKLogitsWarper

    logits = np.round(normal(seed, 4, 37))
    expected = warped(TopKLogitsWarper(top_k), logits)
    np.testing.assert_array_equal(top_k_filter(jnp.asarray(logits), top_k), expected)


@pytest.mark.torch
@given(seed=seeds, top_p=st.floats(0, 1))
def test_top_p_equals_transformers_without_ties(seed, top_p):
    from transformers.generation import TopPLogitsWarper

    logits = normal(seed, 4, 37)
    expected = warped(TopPLogitsWarper(top_p), logits)
    np.testing.assert_array_equal(top_p_filter(jnp.asarray(logits), top_p), expected)


@pytest.mark.torch
@given(seed=seeds, min_p=st.floats(0, 1))
def test_min_p_equals_transformers(seed, min_p):
    from transformers.generation import MinPLogitsWarper

    logits = normal(seed, 4, 37)
    expected = warped(MinPLogitsWarper(min_p), logits)
    np.testing.assert_array_equal(min_p_filter(jnp.asarray(logits), min_p), expected)


def test_top_p_keeps_every_token_tied_with_the_last_one():
    logits = jnp.log(jnp.array([0.1, 0.4, 0.1, 0.3, 0.1]))
    kept = jnp.isfinite(top_p_filter(logits, 0.75))
    np.testing.assert_array_equal(kept, [True] * 5)
    kept = jnp.isfinite(top_p_filter(logits, 0.65))
    np.testing.assert_array_equal(kept, [False, True, False, True, False])


@given(seed=seeds)
def test_every_filter_keeps_the_most_probable_token(seed):
    logits = jnp.asarray(normal(seed, 3, 19))
    for filtered in (
        top_k_filter(logits, 1),
        top_p_filter(logits, 0.0),
        min_p_filter(logits, 1.0),
    ):
        np.testing.assert_array_equal(jnp.sum(jnp.isfinite(filtered), axis=-1), 1)
        np.testing.assert_array_equal(greedy(filtered), greedy(logits))


def test_excluded_tokens_stay_excluded_by_the_next_filter():
    logits = jnp.asarray(normal(0, 2, 19))
    few = top_k_filter(logits, 5)
    for filtered in (top_p_filter(few, 1.0), min_p_filter(few, 0.0), top_p_filter(few, 0.5)):
        assert not jnp.any(jnp.isfinite(filtered) & ~jnp.isfinite(few))


def test_temperature_zero_is_greedy_and_takes_the_first_of_a_tie(key):
    logits = jnp.array([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]], jnp.bfloat16)
    tokens = sample(key, logits, temperature=0.0)
    np.testing.assert_array_equal(tokens, [1, 0])
    assert tokens.dtype == jnp.int32


@pytest.mark.parametrize(
    ("options", "filters"),
    [
        ({"temperature": 1.0}, []),
        ({"temperature": 0.5}, []),
        ({"temperature": 2.0, "top_k": 4}, [lambda x: top_k_filter(x, 4)]),
        ({"temperature": 1.0, "top_p": 0.8}, [lambda x: top_p_filter(x, 0.8)]),
        ({"temperature": 1.0, "min_p": 0.1}, [lambda x: min_p_filter(x, 0.1)]),
    ],
)
def test_samples_follow_the_distribution(key, options, filters):
    from scipy.stats import chisquare

    count, logits = 20_000, jnp.linspace(1, -2, 9)
    tokens = jax.jit(lambda key, logits: sample(key, logits, **options))(
        key, jnp.broadcast_to(logits[None], (count, 9))
    )
    expected = logits / options["temperature"]
    for filter_logits in filters:
        expected = filter_logits(expected)
    expected = np.asarray(jax.nn.softmax(expected), np.float64)
    observed = np.bincount(tokens, minlength=9)
    allowed = expected > 0
    assert np.all(observed[~allowed] == 0)
    frequencies = expected[allowed] / expected[allowed].sum() * count
    assert frequencies.min() > 5
    assert chisquare(observed[allowed], frequencies).pvalue > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": 1.0, "top_k": 0},
        {"temperature": 1.0, "top_p": 1.5},
        {"temperature": 1.0, "top_p": -0.1},
        {"temperature": 1.0, "min_p": 2.0},
    ],
)
def test_out_of_range_is_an_error_that_names_the_argument(key, options):
    with pytest.raises(ConfigError, match=list(options)[-1]):
        sample(key, jnp.zeros((2, 5)), **options)
