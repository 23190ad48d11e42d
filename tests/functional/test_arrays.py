"""Axes by letter: what fits passes, and what does not is named."""

import jax.numpy as jnp
import pytest

from jaxformer.functional.arrays import assert_axes


def test_sizes_of_the_letters_are_returned():
    sizes = assert_axes(
        query=(jnp.zeros((2, 5, 6, 4)), "B T N H"), key=(jnp.zeros((2, 7, 3, 4)), "B S K H")
    )
    assert sizes == {"B": 2, "T": 5, "N": 6, "H": 4, "S": 7, "K": 3}


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5, 2), "S B"), ((1, 5), "B/1 S"), ((9, 8, 5), "... S"), ((1, 3), "1 _"), ((5,), "... S")],
)
def test_what_fits_passes(shape, axes):
    assert_axes(a=(jnp.zeros((2, 5)), "B S"), b=(jnp.zeros(shape), axes))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5,), "B S"), ((3, 5), "B S"), ((3, 5), "B/1 S"), ((2, 5), "1 S"), ((5, 2), "... S")],
)
def test_what_does_not_fit_is_named_with_its_axes(shape, axes):
    with pytest.raises(AssertionError, match=r"mask has shape"):
        assert_axes(ids=(jnp.zeros((2, 5)), "B S"), mask=(jnp.zeros(shape), axes))


def test_what_is_no_array_is_named_by_its_type():
    with pytest.raises(AssertionError, match="query has type list"):
        assert_axes(query=([[1.0]], "B T"))
