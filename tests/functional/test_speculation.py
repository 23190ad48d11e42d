import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from jaxformer.functional.sampling.speculative import accept_by_chance, accept_greedily

ROWS, VOCAB, PROPOSALS = 20_000, 5, 2


@jax.jit
def drawn(seed, count, draft, target):
    """Proposals from the draft's distributions, and what is made of them."""
    keys = jax.random.split(jax.random.key(seed), (2, ROWS, PROPOSALS + 1))
    draw = jax.vmap(jax.vmap(jax.random.categorical))
    draft, target = (jnp.broadcast_to(x, (ROWS, *x.shape)) for x in (draft, target))
    tokens = draw(keys[0, :, :-1], draft)
    return tokens, accept_by_chance(keys[1], tokens, jnp.full(ROWS, count), draft, target)


def logits(*shape, seed):
    return np.random.default_rng(seed).normal(scale=1.5, size=shape).astype(np.float32)


@pytest.mark.parametrize("count", range(PROPOSALS + 1))
def test_what_stands_is_distributed_as_the_model_says(count):
    draft, target = logits(PROPOSALS, VOCAB, seed=0), logits(PROPOSALS + 1, VOCAB, seed=1)
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
    target = logits(PROPOSALS + 1, VOCAB, seed=3)
    _, verdict = drawn(4, PROPOSALS, target[:-1], target)
    assert np.all(verdict.accepted == PROPOSALS)


def test_what_excludes_a_token_excludes_it_from_proposals_and_replacements():
    target = logits(PROPOSALS + 1, VOCAB, seed=3)
    target[:, 1:] = -np.inf
    tokens, verdict = jax.device_get(drawn(4, PROPOSALS, logits(PROPOSALS, VOCAB, seed=5), target))
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
