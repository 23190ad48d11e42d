"""Layouts are their own inverses, and put numbers where other libraries keep them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.hub.weights.layouts import (
    Concatenated,
    Convolution,
    Flat,
    InOut,
    OutIn,
    PerKeyHead,
    Same,
    Slot,
    default_layout,
)

SIZES = st.integers(1, 4)
SHAPES = st.lists(SIZES, min_size=2, max_size=3).map(tuple)


def check_inverse(layout, slots):
    """Reading what was written gives it back, and writing what was read."""
    shape = layout.shape(slots)
    tensor = np.arange(math.prod(shape)).reshape(shape)
    parts = layout.read(tensor, slots)
    assert [part.shape for part in parts] == [slot.shape for slot in slots]
    np.testing.assert_array_equal(layout.write(parts, slots), tensor)
    assert sorted(np.concatenate([part.ravel() for part in parts])) == list(range(tensor.size))


@given(SHAPES, st.sampled_from([OutIn(), InOut(), Same(), Same(leading=2)]))
def test_one_kernel(shape, layout):
    check_inverse(layout, [Slot(shape, 1)])
    check_inverse(layout, [Slot(shape, len(shape) - 1)])


@given(SHAPES)
def test_one_bias(shape):
    check_inverse(Flat(), [Slot(shape, 0)])


@given(st.lists(SIZES, min_size=3, max_size=4).map(tuple))
def test_convolutions(shape):
    check_inverse(Convolution(), [Slot(shape, len(shape) - 1)])


@given(SIZES, st.lists(SIZES, min_size=2, max_size=4), st.sampled_from([OutIn(), InOut()]))
def test_concatenated(inputs, outputs, kernel):
    layout = Concatenated(kernel)
    check_inverse(layout, [Slot((inputs, each), 1) for each in outputs])
    check_inverse(layout, [Slot((each,), 0) for each in outputs])


@given(SIZES, SIZES, SIZES, SIZES)
def test_per_key_head(inputs, heads, groups, width):
    shapes = [(heads * groups, width), (heads, width), (heads, width)]
    check_inverse(PerKeyHead(), [Slot((inputs, *shape), 1) for shape in shapes])
    check_inverse(PerKeyHead(), [Slot(shape, 0) for shape in shapes])


def test_where_the_numbers_go():
    kernel = np.arange(6).reshape(2, 3)
    slot = Slot((2, 3), 1)
    np.testing.assert_array_equal(OutIn().write_one(kernel, slot), kernel.T)
    np.testing.assert_array_equal(InOut().write_one(kernel, slot), kernel)
    # Queries of a key head's group, then its key, then its value.
    slots = [Slot((4, 1), 0), Slot((2, 1), 0), Slot((2, 1), 0)]
    q, k, v = np.arange(4)[:, None], np.array([[10], [11]]), np.array([[20], [21]])
    assert PerKeyHead().write([q, k, v], slots).tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


@pytest.mark.parametrize(
    ("leaf", "layout"), [("kernel", OutIn()), ("bias", Flat()), ("scale", Flat()), ("x", Same())]
)
def test_what_is_usual(leaf, layout):
    assert default_layout(leaf) == layout
