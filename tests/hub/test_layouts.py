"""Arrays of weights: layouts put numbers where other libraries do, and copies are NumPy's."""

import math

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.errors import DataError
from jaxformer.hub.weights.arrays import (
    aligned_empty,
    all_finite,
    check_finite,
    copy_into,
    only_zeros,
)
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


DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
NARROW = [np.dtype(dtype) for dtype in DTYPES[:3]]
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@given(
    st.lists(st.sampled_from([1, 2, 7, 9, 17]), min_size=0, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(NARROW),
    st.sampled_from(NARROW),
)
def test_any_order_of_axes(shape, random, source_dtype, target_dtype):
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(source_dtype)
    order = random.sample(range(len(shape)), len(shape))
    source = numbers.transpose(order)
    target = np.empty(source.shape, target_dtype)
    copy_into(target, source)
    np.testing.assert_array_equal(target, source.astype(target_dtype))


@pytest.mark.parametrize("shape", [(530, 19), (0, 3), (3, 0), (1, 1025)])
def test_more_than_a_block(shape):
    source = np.random.default_rng(0).random(shape[::-1]).astype(np.float32).T
    target = np.empty(shape, np.float32)
    copy_into(target, source)
    np.testing.assert_array_equal(target, source)


def test_a_part_of_a_turned_array():
    source = np.arange(40 * 30).reshape(40, 30).T[3:29:2, 5:]
    target = np.empty(source.shape, source.dtype)
    copy_into(target, source)
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("dtype", NARROW)
def test_jax_takes_the_buffer_as_it_is(dtype):
    array = aligned_empty((3, 1000), dtype)
    array[...] = 1
    placed = jax.device_put(array, jax.devices("cpu")[0])
    assert placed.unsafe_buffer_pointer() == array.ctypes.data
    assert aligned_empty((), dtype).shape == ()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.sampled_from(DTYPES))
def test_every_pattern_of_bits(bits, dtype):
    size = np.dtype(dtype).itemsize
    array = np.array(bits, np.uint64).astype(f"u{size}").view(dtype)
    assert all_finite(array) == bool(np.isfinite(array.astype(np.float64)).all())


@each_dtype
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_one_of_many(dtype, value):
    array = np.ones((3, 50_000), dtype)
    assert all_finite(array)
    for place in ((0, 0), (1, 15_536), (2, -1)):
        spoiled = array.copy()
        spoiled[place] = value
        assert not all_finite(spoiled)


@each_dtype
def test_the_ends_of_a_dtype_are_finite(dtype):
    info = ml_dtypes.finfo(dtype)
    array = np.array([info.max, info.min, info.tiny, 0.0, -0.0], dtype)
    assert all_finite(array)
    assert all_finite(array[:0])
    assert all_finite(array[:1].reshape(()))


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_whole_numbers_are_finite(dtype):
    assert all_finite(np.ones(3, dtype))


def test_the_message_counts():
    array = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    with pytest.raises(DataError, match="a: b has 1 NaN and 2 infinite values among 4"):
        check_finite("a: b", array)
    large = np.array([1e6, -2e6], np.float32)
    with pytest.warns(RuntimeWarning), pytest.raises(DataError, match=r"b has values up to 2e\+06"):
        check_finite("b", large.astype(np.float16), large)
    check_finite("b", large)


@each_dtype
def test_only_zeros(dtype):
    array = np.zeros((2, 100_000), dtype)
    assert only_zeros(array)
    array[1, -1] = 1
    assert not only_zeros(array)
