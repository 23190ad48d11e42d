"""Losses of pairs beside their definitions in NumPy."""

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

from jaxformer.functional.losses.contrastive import contrastive_loss, sigmoid_contrastive_loss

pytestmark = pytest.mark.more

LOSSES = {"softmax": contrastive_loss, "sigmoid": sigmoid_contrastive_loss}


def logits(size, seed=0):
    return 3 * np.random.default_rng(seed).standard_normal((size, size)).astype(np.float32)


def test_contrastive_loss_is_the_mean_of_both_directions():
    x = logits(5)
    rows, columns = np.diag(log_softmax(x, axis=1)), np.diag(log_softmax(x, axis=0))
    sums = contrastive_loss(x)
    np.testing.assert_allclose(sums.loss, -(rows + columns).sum() / 2, rtol=1e-5)
    own = np.arange(5)
    right = np.mean([x.argmax(1) == own, x.argmax(0) == own], axis=0).sum()
    assert (sums.weight, sums.correct) == (5, right)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.quick("sigmoid")
def test_a_pair_without_weight_is_not_there(loss):
    x, weights = logits(6), np.array([1, 0, 1, 1, 0, 1], np.float32)
    some = x[np.ix_(weights > 0, weights > 0)]
    for found, expected in zip(loss(x, weights), loss(some), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    gradient = jax.grad(lambda x: loss(x, weights).loss)(x)
    expected = jax.grad(lambda x: loss(x).loss)(some)
    np.testing.assert_allclose(gradient[np.ix_(weights > 0, weights > 0)], expected, rtol=1e-5)
    assert not gradient[weights == 0].any()
    assert not gradient[:, weights == 0].any()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_shapes_are_checked(loss):
    with pytest.raises(AssertionError, match="logits"):
        loss(np.zeros((3, 4), np.float32))
    with pytest.raises(AssertionError, match="weights"):
        loss(logits(3), np.ones(4, np.float32))
