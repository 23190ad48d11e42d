"""The best constant prediction of each head, by counting."""

import numpy as np
import pytest

from jaxformer.models import Classification, LanguageModel, Regression, Span

pytestmark = pytest.mark.more


def batches(name, values, weights):
    weight = "weights" if name == "targets" else f"{name}_weights"
    arrays = zip(np.split(values, 2), np.split(weights, 2), strict=True)
    return [{name: value, weight: share} for value, share in arrays]


@pytest.mark.parametrize(
    ("head", "name"), [(LanguageModel(), "targets"), (Classification(3), "label")]
)
def test_the_most_frequent_choice(head, name):
    train = batches(name, np.array([2, 2, 1, 0, 1, 1]), np.array([1.0, 1, 1, 1, 1, 0]))
    asked = batches(name, np.array([2, 0, 2, 1]), np.array([1.0, 1, 1, 0]))
    scored = head.baseline(train, asked)
    # Counts 1, 2, 2 and one more of each; the first of equal ones is answered.
    assert scored["accuracy"] == 0.0
    expected = -(2 * np.log(3 / 8) + np.log(2 / 8)) / 3
    np.testing.assert_allclose(scored["loss"], expected, rtol=1e-12)


def test_the_mean_of_numbers():
    train = batches("score", np.array([1.0, 2.0, 6.0, 100.0]), np.array([1.0, 1, 1, 0]))
    asked = batches("score", np.array([3.0, 5.0, 9.0, 0.0]), np.array([1.0, 1, 0, 0]))
    assert Regression(label="score").baseline(train, asked) == {"squared_error": 2.0}


def test_no_constant_span_makes_sense():
    assert Span().baseline([], []) == {}
