"""Copies that are turned, cut and cast are NumPy's, and JAX takes the buffers without a copy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.hub.weights.arrays import aligned_empty, copy_into

DTYPES = [np.dtype(dtype) for dtype in (np.float32, np.float16, jnp.bfloat16)]


@given(
    st.lists(st.sampled_from([1, 2, 7, 9, 17]), min_size=0, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_takes_the_buffer_as_it_is(dtype):
    array = aligned_empty((3, 1000), dtype)
    array[...] = 1
    placed = jax.device_put(array, jax.devices("cpu")[0])
    assert placed.unsafe_buffer_pointer() == array.ctypes.data
    assert aligned_empty((), dtype).shape == ()
