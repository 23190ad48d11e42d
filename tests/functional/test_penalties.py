import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional import (
    ban_sequences,
    frequency_penalty,
    no_repeat_ngram,
    presence_penalty,
    repetition_penalty,
    token_counts,
)

seeds = st.integers(0, 2**31)
VOCAB = 131


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(scale=3, size=shape).astype(np.float32)


def histories(seed, rows=5, width=12, alphabet=4):
    """Tokens of few kinds, so that much repeats, with lengths from none to all of them."""
    rng = np.random.default_rng(seed)
    lengths = np.array([0, width, *rng.integers(0, width + 1, rows - 2)], np.int32)
    return rng.integers(0, alphabet, (rows, width)).astype(np.int32), lengths


def excluded(logits):
    return [set(np.flatnonzero(np.isneginf(row))) for row in np.asarray(logits)]


def test_counts_are_of_the_places_that_count_and_of_tokens_of_the_vocabulary():
    tokens = jnp.array([[1, 1, 3, 4, -1], [0, 0, 0, 2, 2]])
    counted = jnp.array([[True] * 5, [True, False, True, False, True]])
    np.testing.assert_array_equal(token_counts(tokens, counted, 4), [[0, 2, 0, 1], [2, 0, 1, 0]])


def test_repetition_makes_any_logit_smaller_and_leaves_the_unseen_alone():
    logits = jnp.array([[4.0, -4.0, 0.0, 4.0, -jnp.inf]])
    seen = jnp.array([[True, True, True, False, True]])
    np.testing.assert_array_equal(
        repetition_penalty(logits, seen, 2.0), [[2.0, -8.0, 0.0, 4.0, -np.inf]]
    )


def test_presence_counts_once_and_frequency_every_time():
    logits, counts = jnp.array([[1.0, 1.0, -1.0]]), jnp.array([[0, 1, 3]])
    np.testing.assert_allclose(presence_penalty(logits, counts > 0, 0.5), [[1.0, 0.5, -1.5]])
    np.testing.assert_allclose(frequency_penalty(logits, counts, 0.5), [[1.0, 0.5, -2.5]])


@given(seed=seeds, ngram_size=st.sampled_from((1, 2, 3, 5)))
def test_an_ngram_is_banned_exactly_where_it_is_there_already(seed, ngram_size):
    tokens, lengths = histories(seed)
    logits = jnp.asarray(normal(seed, len(tokens), VOCAB))
    ban = jax.jit(no_repeat_ngram, static_argnums=3)
    actual = ban(logits, jnp.asarray(tokens), jnp.asarray(lengths), ngram_size)
    for row, banned in enumerate(excluded(actual)):
        written = tokens[row, : lengths[row]].tolist()
        there = {tuple(written[i : i + ngram_size]) for i in range(len(written) - ngram_size + 1)}
        prefix = written[max(len(written) - ngram_size + 1, 0) :]
        assert banned == {v for v in range(4) if (*prefix, v) in there}
        kept = [v for v in range(VOCAB) if v not in banned]
        np.testing.assert_array_equal(actual[row, kept], logits[row, kept])


sequences = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@given(seed=seeds, banned=st.tuples(*[sequences] * 4))
def test_a_sequence_is_banned_exactly_where_it_would_end(seed, banned):
    tokens, lengths = histories(seed)
    logits = jnp.asarray(normal(seed, len(tokens), VOCAB))
    actual = ban_sequences(logits, jnp.asarray(tokens), jnp.asarray(lengths), banned)
    for row, found in enumerate(excluded(actual)):
        written = tuple(tokens[row, : lengths[row]].tolist())
        assert found == {
            last
            for *prefix, last in banned
            if len(prefix) <= len(written) and written[len(written) - len(prefix) :] == (*prefix,)
        }


def test_what_lies_beyond_the_length_is_never_read():
    tokens, lengths = map(jnp.asarray, histories(0))
    logits = jnp.asarray(normal(0, len(tokens), VOCAB))
    banned = ((1, 2), (0, 0, 0), (3,))

    @jax.jit
    def ban(tokens):
        repeated = no_repeat_ngram(logits, tokens, lengths, 2)
        return repeated, ban_sequences(logits, tokens, lengths, banned)

    beyond = jnp.arange(tokens.shape[1])[None, :] >= lengths[:, None]
    for replacement in (-1, 0, 3, 2**31 - 1):
        other = jnp.where(beyond, replacement, tokens)
        for actual, expected in zip(ban(other), ban(tokens), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_inside_a_compiled_loop_no_bigram_occurs_twice():
    # Eight tokens are 64 bigrams: the most probable one without repetition can go on for long.
    width = 30
    logits = jnp.asarray(normal(0, 3, 8))

    def write(carry):
        tokens, lengths = carry
        token = jnp.argmax(no_repeat_ngram(logits, tokens, lengths, 2), axis=-1)
        here = jnp.arange(width)[None, :] == lengths[:, None]
        return jnp.where(here, token[:, None], tokens), jnp.minimum(lengths + 1, width)

    start = jnp.zeros((3, width), jnp.int32), jnp.array([1, 2, 5])
    tokens, _ = jax.jit(
        lambda carry: jax.lax.while_loop(lambda c: jnp.any(c[1] < width), write, carry)
    )(start)
    for row, first in zip(np.asarray(tokens), (0, 1, 4), strict=True):
        pairs = list(zip(row[first:], row[first + 1 :], strict=False))
        assert len(set(pairs)) == len(pairs)


def test_no_sequences_ban_nothing():
    tokens, lengths = map(jnp.asarray, histories(0))
    logits = jnp.asarray(normal(0, len(tokens), VOCAB))
    np.testing.assert_array_equal(ban_sequences(logits, tokens, lengths, ()), logits)


def test_fewer_places_than_an_ngram_ban_nothing():
    logits = jnp.zeros((1, 5))
    np.testing.assert_array_equal(
        no_repeat_ngram(logits, jnp.zeros((1, 2), int), jnp.array([2]), 4), logits
    )
