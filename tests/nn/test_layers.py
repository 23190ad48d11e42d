"""The Linear, NormLayer and Embedding modules: their parameters, and the maths of each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import LayerNorm, RMSNorm
from jaxformer.functional.norms import NoNorm
from jaxformer.nn import Embedding, Linear, NormLayer
from jaxformer.nn.layers import normal, optional_norm

D, F = {"embed": 5}, {"mlp": 7}
HEADS, ONE_HEAD = {"heads": 3, "head_dim": 4}, {"kv_heads": 1, "head_dim": 2}


def made(inputs, outputs, bias):
    """A module with a random kernel and, so that it matters, a random bias."""
    keys = jax.random.split(jax.random.key(0), 2)
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


# Norms -----------------------------------------------------------------------------------------

NORMS = {
    "layer": LayerNorm(eps=1e-3),
    "layer without bias": LayerNorm(eps=1e-3, bias=False),
    "rms": RMSNorm(eps=1e-3),
    "rms with offset": RMSNorm(eps=1e-3, unit_offset=True),
}
each_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())


def expected(norm, x, scale, bias):
    x = np.asarray(x, np.float64)
    if isinstance(norm, LayerNorm):
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.eps)
    factor = 1 + scale if getattr(norm, "unit_offset", False) else scale
    return y * factor + (0 if bias is None else bias)


def states(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, shape), jnp.float32)


@each_norm
@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (2, 3, 5, 7)])
def test_a_norm_is_its_formula(key, norm, shape):
    layer, x = NormLayer(key, norm, 7), states(*shape)
    initial = np.full(7, 0.0 if getattr(norm, "unit_offset", False) else 1.0)
    np.testing.assert_allclose(layer(x), expected(norm, x, initial, None), rtol=1e-5, atol=1e-5)
    scale, bias = np.random.default_rng(1).normal(size=(2, 7))
    layer.scale[...] = jnp.asarray(scale, jnp.float32)
    has_bias = isinstance(norm, LayerNorm) and norm.bias
    assert (layer.bias is not None) == has_bias
    if has_bias:
        layer.bias[...] = jnp.asarray(bias, jnp.float32)
    wanted = expected(norm, x, scale, bias if has_bias else None)
    np.testing.assert_allclose(layer(x), wanted, rtol=1e-5, atol=1e-5)


@each_norm
def test_parameters_are_float32_vectors_along_the_norm_axis(key, norm):
    layer = NormLayer(key, norm, 7)
    for variable in (v for v in (layer.scale, layer.bias) if v is not None):
        assert variable.shape == (7,)
        assert variable.dtype == jnp.float32
        assert variable.get_metadata()["axes"] == ("norm",)
    assert layer(states(2, 7).astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_a_norm_that_a_config_leaves_out(key):
    assert optional_norm(key, None, 7) is None
    layer = optional_norm(key, NORMS["rms"], 7)
    assert isinstance(layer, NormLayer)
    assert layer.scale.shape == (7,)


def test_no_norm_has_no_parameters_and_does_nothing(key):
    layer, x = NormLayer(key, NoNorm(), 7), states(2, 7)
    assert layer.scale is None
    assert layer.bias is None
    assert layer(x) is x


# Embeddings ------------------------------------------------------------------------------------

IDS = jnp.array([[3, 0, 3, 10], [9, 3, 1, 1]])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_rows_of_the_table_are_rounded_and_their_gradients_add_up_in_float32(key, dtype):
    embedding = Embedding(key, 11, 5, normal(0.3))
    assert embedding.table.shape == (11, 5)
    assert embedding.table.get_metadata()["axes"] == ("vocab", "vocab_embed")
    rows = embedding(IDS, dtype)
    assert rows.dtype == dtype
    np.testing.assert_array_equal(rows, embedding.table[...][IDS].astype(dtype))
    gradient = jax.grad(lambda e: jnp.sum(e(IDS, dtype).astype(jnp.float32)))(embedding)
    counts = np.bincount(np.asarray(IDS).ravel(), minlength=11).astype(np.float32)
    assert embedding.table.dtype == gradient.table.dtype == jnp.float32
    np.testing.assert_array_equal(gradient.table[...], np.tile(counts[:, None], 5))
