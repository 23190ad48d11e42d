"""Convolutions over time: windows, grouped kernels, the weight norm, and the norm of channels."""

import jax.numpy as jnp
import numpy as np
import pytest
from derivative_cases import convolution_by_taps
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.errors import ArgumentError
from jaxformer.functional.audio.convolution import (
    channel_norm,
    grouped_convolution,
    num_windows,
    weight_norm,
    windows,
)

sizes = st.integers(1, 5)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@given(rows=sizes, extra=st.integers(0, 9), channels=sizes, size=sizes, stride=sizes)
def test_windows_are_slices_of_the_row(rows, extra, channels, size, stride):
    length = size + extra
    x = np.arange(rows * length * channels).reshape(rows, length, channels)
    cut = np.asarray(windows(jnp.asarray(x), size, stride))
    starts = range(0, length - size + 1, stride)
    assert cut.shape[1] == num_windows(length, size, stride) == len(starts)
    for number, start in enumerate(starts):
        np.testing.assert_array_equal(cut[:, number], x[:, start : start + size])


def test_a_row_shorter_than_a_window_is_refused():
    with pytest.raises(ArgumentError, match="size = 4: must be at most the length of the rows, 3"):
        windows(jnp.zeros((1, 3, 2)), 4, 1)


@pytest.mark.parametrize(("size", "groups"), [(6, 3), (5, 1), (1, 2), (9, 6)])
def test_a_grouped_convolution_is_one_for_each_group(size, groups):
    x, kernel = normal(2, 7, 6), normal(size, 6 // groups, 6, seed=1)
    found = grouped_convolution(x, kernel, groups=groups)
    np.testing.assert_allclose(found, convolution_by_taps(x, kernel, groups), rtol=1e-5, atol=1e-5)


def test_groups_must_divide_the_channels():
    with pytest.raises(ArgumentError, match="groups = 4: must be a divisor of the 6 channels"):
        grouped_convolution(normal(1, 3, 6), normal(3, 2, 6), groups=4)


def test_a_weight_norm_gives_each_tap_its_length():
    direction, magnitude = normal(4, 3, 5), normal(4, seed=1)
    kernel = weight_norm(direction, magnitude)
    lengths = jnp.sqrt(jnp.sum(jnp.square(kernel), axis=(1, 2)))
    np.testing.assert_allclose(lengths, jnp.abs(magnitude), rtol=1e-5)
    np.testing.assert_allclose(weight_norm(3 * direction, magnitude), kernel, rtol=1e-5)


def test_a_channel_norm_leaves_padding_out():
    x, scale, bias = 2 + 3 * normal(2, 9, 4), normal(4, seed=1), normal(4, seed=2)
    valid = jnp.arange(9)[None, :] < jnp.array([[9], [5]])
    found = channel_norm(x, scale, bias, valid, eps=1e-5)
    short = channel_norm(x[1:, :5], scale, bias, eps=1e-5)
    np.testing.assert_allclose(found[1:, :5], short, rtol=1e-5, atol=1e-5)
    plain = channel_norm(x, jnp.ones(4), jnp.zeros(4), eps=1e-9)
    np.testing.assert_allclose(plain.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(plain.std(axis=1), 1, rtol=1e-5)
