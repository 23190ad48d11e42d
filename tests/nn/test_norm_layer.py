"""The NormLayer module: the parameters a norm declares, and nothing but that norm's maths."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import LayerNorm, RMSNorm
from jaxformer.functional.norms import NoNorm
from jaxformer.nn import NormLayer
from jaxformer.nn.layers import optional_norm

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


def inputs(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, shape), jnp.float32)


@each_norm
@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (2, 3, 5, 7)])
def test_values(key, norm, shape):
    layer, x = NormLayer(key, norm, 7), inputs(*shape)
    fresh = layer(x)
    ones, zeros = np.ones(7), np.zeros(7)
    initial = zeros if getattr(norm, "unit_offset", False) else ones
    np.testing.assert_allclose(fresh, expected(norm, x, initial, None), rtol=1e-5, atol=1e-5)

    random = np.random.default_rng(1)
    scale, bias = random.normal(size=(2, 7))
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
    assert layer(inputs(2, 7).astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_a_norm_that_a_config_leaves_out(key):
    assert optional_norm(key, None, 7) is None
    layer = optional_norm(key, NORMS["rms"], 7)
    assert isinstance(layer, NormLayer)
    assert layer.scale.shape == (7,)


def test_no_norm_has_no_parameters_and_does_nothing(key):
    layer, x = NormLayer(key, NoNorm(), 7), inputs(2, 7)
    assert layer.scale is None
    assert layer.bias is None
    assert layer(x) is x
