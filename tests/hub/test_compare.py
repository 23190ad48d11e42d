import numpy as np
import pytest

from jaxformer.hub.compare import differences, gradient_differences, relative_difference

ONES = np.ones((2, 3))
NAN = np.where(np.eye(2, 3) > 0, np.nan, 1.0)


def test_the_largest_difference_beside_the_largest_value():
    assert relative_difference(ONES + np.array([0, 0.5, 0.25]), 2 * ONES) == 0.5
    assert relative_difference(0.1 * ONES, 0 * ONES) == pytest.approx(0.1)


@pytest.mark.parametrize("pair", [(NAN, ONES), (ONES, NAN), (NAN, NAN), (ONES, ONES[:1])])
def test_what_is_no_number_or_has_another_shape_differs(pair):
    ours, theirs = ({"x": x, "y": ONES} for x in pair)
    assert relative_difference(*pair) == np.inf
    assert differences(ours, theirs, {}) == {"x": np.inf, "y": 0.0}


def test_gradients_that_are_rounding_on_both_sides_are_equal():
    theirs = {"a": ONES, "b": 1e-7 * ONES, "c": 1e-7 * ONES}
    ours = {"a": ONES, "b": 2e-7 * ONES, "c": NAN}
    assert gradient_differences(ours, theirs) == {"a": 0.0, "b": 0.0, "c": np.inf}
