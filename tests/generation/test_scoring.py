"""Scores of continuations: the numbers of the full pass, whatever they are batched with."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import engine_of, prompts_of
from tiny_models import (
    logits_of,
    random_parameters,
    scores_of,
    structure_of,
    tiny,
    tiny_encoder_decoder,
)

from jaxformer.errors import ConfigError, DataError
from jaxformer.functional import DynamicNTK, KeyPadding, RoPE
from jaxformer.generation.inputs import Prompts
from jaxformer.generation.scoring import Score, Scorer, best_of

pytestmark = pytest.mark.more

CONFIG = tiny(num_layers=1)
CONTINUATIONS = [[[3], [4, 5, 6], [30, 0, 2, 2]], [[7, 7]], [], [[1], [2]]]


@lru_cache
def scorer(config, rows=16):
    return Scorer(engine_of(config), rows)


PROMPTS = prompts_of(2, 9, 4, 17)


def pairs(prompts, continuations):
    """Every prompt with each of its continuations, as lists of tokens, in order."""
    for row, several in enumerate(continuations):
        for tokens in several:
            yield row, prompts.tokens[row, : prompts.lengths[row]].tolist(), list(tokens)


def assert_scored(score, logits, prompt, tokens):
    """The score is what the logits `[prompt + tokens - 1, V]` of a pass say."""
    own = np.asarray(logits)[len(prompt) - 1 :]
    expected = np.asarray(jax.nn.log_softmax(jnp.asarray(own)))[np.arange(len(tokens)), tokens]
    np.testing.assert_allclose(score.token_log_probs, expected, atol=2e-5)
    assert score.num_tokens == len(tokens)
    assert score.log_prob == pytest.approx(expected.sum(), abs=1e-4)
    assert score.mean_log_prob == pytest.approx(expected.mean(), abs=1e-4)
    assert score.is_greedy == (own.argmax(-1).tolist() == tokens)


def flat(scores):
    return [score for several in scores for score in several]


def test_scores_are_those_of_the_full_pass():
    scores = scorer(CONFIG)(PROMPTS, CONTINUATIONS)
    assert [len(several) for several in scores] == [3, 1, 0, 2]
    for (_, prompt, tokens), score in zip(pairs(PROMPTS, CONTINUATIONS), flat(scores), strict=True):
        # Padding on the right changes nothing: one program for all.
        row = np.zeros((1, 24), np.int32)
        row[0, : len(prompt) + len(tokens)] = prompt + tokens
        logits = logits_of(CONFIG, random_parameters(CONFIG), row)[0]
        assert_scored(score, logits[: len(prompt) + len(tokens) - 1], prompt, tokens)


@pytest.mark.parametrize(
    "config",
    [CONFIG, tiny(num_layers=1, position=RoPE(theta=100.0, scaling=DynamicNTK(2.0, 4)))],
    ids=["rope", "stretched"],
)
@pytest.mark.quick("rope")
def test_a_score_does_not_depend_on_the_others(config):
    together = scorer(config)(PROMPTS, CONTINUATIONS)
    alone = scorer(config, rows=1)(PROMPTS, CONTINUATIONS)
    for one, other in zip(flat(together), flat(alone), strict=True):
        np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, atol=1e-5)
        assert one.is_greedy == other.is_greedy


def test_positions_are_stretched_as_far_as_each_row_needs():
    config = tiny(num_layers=1, position=RoPE(theta=100.0, scaling=DynamicNTK(2.0, 4)))
    ((score,),) = scorer(config)(Prompts(PROMPTS.tokens[1:2], PROMPTS.lengths[1:2]), [[[5, 6, 7]]])
    row = [*PROMPTS.tokens[1, :9].tolist(), 5, 6]
    logits = logits_of(config, random_parameters(config), np.array([row], np.int32))[0]
    assert_scored(score, logits, row[:9], [5, 6, 7])


def test_encoder_decoders_score_what_follows_the_start():
    config = tiny_encoder_decoder(num_layers=1, num_decoder_layers=1)
    scored, parameters = scorer(config, rows=4), random_parameters(config)
    source = np.random.default_rng(3).integers(0, 31, (3, 6)).astype(np.int32)
    segments = (np.arange(6) < np.array([[6], [4], [5]])).astype(np.int32)
    mask = KeyPadding(jnp.asarray(segments > 0))
    encode = jax.jit(lambda p: structure_of(config).module(p).encode(source, segments=segments))
    prompts, continuations = prompts_of(1, 2, 1), [[[3], [4, 5]], [[6, 7, 8]], [[9], [1, 1]]]
    scores = scored(prompts, continuations, encoder_outputs=(encode(parameters), mask))
    for (row, prompt, tokens), score in zip(
        pairs(prompts, continuations), flat(scores), strict=True
    ):
        inputs = np.zeros((1, 5), np.int32)
        inputs[0, : len(prompt) + len(tokens)] = prompt + tokens
        batch = {"inputs": source[[row]], "segments": segments[[row]], "decoder_inputs": inputs}
        logits = scores_of(config, parameters, batch)["language_model"][0]
        assert_scored(score, logits[: len(prompt) + len(tokens) - 1], prompt, tokens)


def test_the_best_is_chosen_by_sum_or_by_mean():
    short, long = np.array([-1.0, -1.5], "f4"), np.array([-1.0, -1.0, -1.0], "f4")
    scores = [Score(np.array([-9.0], "f4"), False), Score(short, False), Score(long, True)]
    assert best_of(scores, "sum") == 1
    assert best_of(scores, "mean") == 2
    assert best_of([scores[1]] * 2, "sum") == 0
    with pytest.raises(ConfigError, match="by = 'best'"):
        best_of(scores, "best")
    with pytest.raises(DataError, match="without continuations"):
        best_of([], "sum")
