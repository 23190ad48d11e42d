"""The Linear module: axes apart, a bias only where asked, and the maths of an einsum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import Linear
from jaxformer.nn.layers import normal

D, F = {"embed": 5}, {"mlp": 7}
HEADS, ONE_HEAD = {"heads": 3, "head_dim": 4}, {"kv_heads": 1, "head_dim": 2}


def made(inputs, outputs, bias, seed=0):
    """A module with a random kernel and, so that it matters, a random bias."""
    keys = jax.random.split(jax.random.key(seed), 2)
    layer = Linear(keys[0], inputs, outputs, normal(0.7), bias=bias)
    if bias:
        layer.bias[...] = jax.random.normal(keys[1], layer.bias.shape)
    return layer


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch", "bias"),
    [
        (D, HEADS, (2, 3), False),
        (D, HEADS, (2, 3), True),
        (D, ONE_HEAD, (), True),
        (HEADS, D, (2, 3), True),
        (HEADS, D, (2,), False),
        (HEADS, {"kv_heads": 1, "width": 2}, (2,), True),
    ],
)
def test_values_are_those_of_the_flattened_matrix_product(inputs, outputs, batch, bias):
    layer = made(inputs, outputs, bias)
    in_shape, out_shape = tuple(inputs.values()), tuple(outputs.values())
    assert layer.kernel.shape == in_shape + out_shape
    assert layer.kernel.get_metadata()["axes"] == (*inputs, *outputs)
    x = np.random.default_rng(1).normal(size=(*batch, *in_shape)).astype(np.float32)
    rows = x.astype(np.float64).reshape(-1, np.prod(in_shape, dtype=int))
    kernel = np.asarray(layer.kernel[...], np.float64)
    expected = (rows @ kernel.reshape(rows.shape[1], -1)).reshape(*batch, *out_shape)
    if bias:
        assert layer.bias.get_metadata()["axes"] == tuple(outputs)
        expected = expected + np.asarray(layer.bias[...], np.float64)
    else:
        assert layer.bias is None
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)


def test_biases_start_at_zero_and_kernels_by_the_initializer(key):
    layer = Linear(key, D, F, lambda _, shape: jnp.full(shape, 0.5), bias=True)
    np.testing.assert_array_equal(layer.bias[...], np.zeros(7))
    np.testing.assert_array_equal(layer.kernel[...], np.full((5, 7), 0.5))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_result_has_the_dtype_of_the_input_and_gradients_that_of_the_parameters(dtype):
    layer = made(D, HEADS, True)
    x = jnp.ones((2, 5), dtype)
    assert layer(x).dtype == dtype
    gradients = jax.grad(lambda layer: jnp.sum(layer(x).astype(jnp.float32)))(layer)
    assert gradients.kernel[...].dtype == gradients.bias[...].dtype == jnp.float32
    # d(sum y)/d(bias) counts the rows, d(sum y)/d(kernel) sums the inputs.
    np.testing.assert_array_equal(gradients.bias[...], np.full((3, 4), 2.0))
    np.testing.assert_array_equal(gradients.kernel[...], np.full((5, 3, 4), 2.0))
