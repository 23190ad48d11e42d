import numpy as np
import pytest

from jaxformer.parity.compare import (
    Errors,
    beyond_rounding,
    differences,
    errors,
    gradient_differences,
    gradient_errors,
    relative_difference,
)

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


def off(by: float) -> dict[str, np.ndarray]:
    """An output whose largest value is 2, the same for 0."""
    return {"x": np.array([2.0, 1.0 + by])}


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        # Well conditioned: only units in the last place.
        (0, 0, True),
        (3e-6, 0, True),
        (5e-6, 0, False),
        (8e-6, 1e-6, False),
        # Ill conditioned: as theirs is.
        (3.5e-5, 2e-5, True),
        (1e-4, 2e-5, False),
        # A program that is right is not judged by one that is not.
        (0, 1e-4, True),
        (1e-6, 3e-3, False),
        (5e-3, 1.5e-3, False),
    ],
)
def test_rounding_is_judged_by_float64(ours, theirs, same):
    found = errors(off(ours), off(-theirs), off(0), {})
    assert found["x"].ours == pytest.approx(ours / 2)
    assert found["x"].theirs == pytest.approx(theirs / 2)
    assert beyond_rounding(found) == ({} if same else found)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("spoiled", [NAN, ONES[:1]])
def test_what_is_no_number_is_not_rounding(which, spoiled):
    arrays = [{"x": ONES}, {"x": ONES}, {"x": ONES}]
    arrays[which] = {"x": spoiled}
    assert beyond_rounding(gradient_errors(*arrays))


def test_a_gradient_that_vanishes_is_measured_beside_the_largest():
    exact = {"a": 2 * ONES, "b": 1e-16 * ONES}
    for ours, same in [(1e-6, True), (1e-5, False)]:
        found = gradient_errors(exact | {"b": ours * ONES}, exact | {"b": -1e-7 * ONES}, exact)
        assert found["b"] == Errors(pytest.approx(ours / 2), pytest.approx(5e-8))
        assert (not beyond_rounding(found)) is same
    # A small one that does not vanish is not.
    exact = {"a": 2 * ONES, "b": 1e-6 * ONES}
    found = gradient_errors(exact | {"b": 1.01e-6 * ONES}, exact, exact)
    assert set(beyond_rounding(found)) == {"b"}


def test_what_theirs_has_right_by_chance_is_judged_by_the_rest():
    found = {"logits": Errors(2e-5, 1e-5), "loss": Errors(2e-5, 0.0)}
    assert not beyond_rounding(found)
    assert set(beyond_rounding({"loss": found["loss"]})) == {"loss"}


def test_padding_is_left_out():
    mask = np.array([[1, 1, 0]])
    exact = {"logits": np.ones((1, 3, 4)), "loss": np.array(2.0)}
    ours = {"logits": np.where(mask[..., None] > 0, exact["logits"], 7.0), "loss": np.array(2.0)}
    assert errors(ours, exact, exact, {"attention_mask": mask})["logits"] == Errors(0.0, 0.0)
    assert beyond_rounding(errors(ours, exact, exact, {}))
