"""Kernels in int8 and with low-rank factors: products, precision, gradients."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxprs import equations

from jaxformer.functional import linear
from jaxformer.functional.linear import (
    Adapted,
    KernelForm,
    Part,
    Quantized,
    Transposed,
    dense,
    dequantized,
    output_sizes,
    quantized,
)
from jaxformer.functional.losses.cross_entropy import chunked_cross_entropy, cross_entropy

pytestmark = pytest.mark.more

RANDOM = np.random.default_rng(0)


def array(*shape):
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


def matrix(x, sides):
    return np.asarray(x, np.float64).reshape(sides)


@settings(max_examples=5)
@given(
    layers=st.integers(0, 2),
    inputs=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    outputs=st.lists(st.integers(1, 4), min_size=1, max_size=2),
)
def test_int8_is_off_by_half_a_step_at_most(layers, inputs, outputs):
    lead = [layers] if layers else []
    kernel = array(*lead, *inputs, *outputs)
    found = quantized(kernel, len(inputs), len(lead))
    assert found.values.dtype == jnp.int8
    assert found.scales.shape == (*lead, *outputs)
    again = dequantized(found, len(inputs), len(lead))
    step = np.expand_dims(found.scales, tuple(range(len(lead), len(lead) + len(inputs))))
    assert (np.abs(again - kernel) <= 0.5 * step + 1e-6).all()
    largest = np.abs(kernel).max(axis=tuple(range(len(lead), len(lead) + len(inputs))))
    np.testing.assert_allclose(found.scales, largest / 127, rtol=1e-6)


def test_a_column_of_zeros_stays_zero():
    found = quantized(jnp.zeros((3, 2)), 1)
    np.testing.assert_array_equal(dequantized(found, 1), jnp.zeros((3, 2)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_product_with_int8_is_that_with_what_it_stands_for(dtype):
    x, kernel, bias = array(5, 7, 6).astype(dtype), quantized(array(7, 6, 4, 3), 2), array(4, 3)
    plain = dequantized(kernel, 2)
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2

    def products(kernel):
        return jax.vjp(lambda x: linear(x, kernel, bias, contract=2), x)

    (y, pullback), (expected, exact) = products(kernel), products(plain)
    cotangent = array(5, 4, 3).astype(dtype)
    for ours, wanted in ((y, expected), (pullback(cotangent)[0], exact(cotangent)[0])):
        assert ours.dtype == dtype
        wanted = np.asarray(wanted, np.float32)
        size = np.abs(wanted).max()
        np.testing.assert_allclose(
            np.asarray(ours, np.float32) / size, wanted / size, atol=tolerance
        )


def test_a_large_layer_in_int8_is_close_to_float32():
    """What the documentation states: about 0.6 % of the output's size for normal weights."""
    x, kernel = array(64, 512), array(512, 256) / 512**0.5
    y, exact = linear(x, quantized(kernel, 1)), linear(x, kernel)
    error = float(jnp.sqrt(jnp.mean((y - exact) ** 2) / jnp.mean(exact**2)))
    assert 0.002 < error < 0.008


def adapted(rate=0.0, key=None, base=None):
    base = array(3, 2, 5, 4) if base is None else base
    return Adapted(base, array(3, 2, 6), array(6, 5, 4), key, 1.5, rate)


def test_factors_add_to_the_product():
    x, kernel, bias = array(7, 3, 2), adapted(), array(5, 4)
    weight = matrix(kernel.base, (6, 20))
    weight = weight + 1.5 * matrix(kernel.a, (6, 6)) @ matrix(kernel.b, (6, 20))
    expected = matrix(x, (7, 6)) @ weight + matrix(bias, (20,))
    actual = linear(x, kernel, bias, contract=2)
    np.testing.assert_allclose(actual, expected.reshape(7, 5, 4), rtol=1e-5, atol=1e-5)
    none = Adapted(kernel.base, kernel.a, jnp.zeros_like(kernel.b), None, 1.5)
    plain = linear(x, kernel.base, bias, contract=2)
    np.testing.assert_array_equal(linear(x, none, bias, contract=2), plain)


def test_dropout_changes_what_the_factors_read_and_not_its_mean():
    x, kernel = array(7, 3, 2), adapted(rate=0.25)
    exact = linear(x, kernel, contract=2)

    def dropped(key):
        own = Adapted(kernel.base, kernel.a, kernel.b, key, kernel.scale, kernel.dropout)
        return linear(x, own, contract=2)

    found = jax.jit(jax.vmap(dropped))(jax.random.split(jax.random.key(0), 4000))
    spread = np.std(found, axis=0)
    assert spread.min() > 0.01
    assert (np.abs(np.mean(found, axis=0) - exact) < 5 * spread / 4000**0.5).all()
    without = linear(x, kernel.base, contract=2)
    only = jnp.zeros_like(x).at[0, 0, 0].set(1.0)
    one = Adapted(jnp.zeros_like(kernel.base), kernel.a, kernel.b, jax.random.key(1), 1.0, 0.25)
    (row,) = (linear(only, one, contract=2)[0],)
    whole = jnp.tensordot(kernel.a[0, 0], kernel.b, 1) / 0.75
    assert np.allclose(row, whole, atol=1e-5) or not row.any()
    assert np.abs(without - exact).max() > 0.1


@pytest.mark.parametrize("base", [None, quantized(array(3, 2, 5, 4), 2)], ids=["float32", "int8"])
def test_nothing_is_computed_for_a_base_that_is_frozen(base):
    kernel, x = adapted(base=base), array(7, 3, 2)

    def loss(factors, base):
        a, b = factors
        y = linear(x * a.sum(), Adapted(base, a, b, None, 1.5), contract=2)
        return jnp.sum(y**2)

    jaxpr = jax.make_jaxpr(jax.grad(loss))((kernel.a, kernel.b), kernel.base).jaxpr
    products = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
    assert not [e for e in products if e.outvars[0].aval.shape == (3, 2, 5, 4)]
    assert len(products) == 8  # three forward, as many back to x, and two for the factors


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_chunked_loss_with_factors_is_the_dense_one(softcap):
    hidden, targets = array(3, 5, 4), jnp.asarray(RANDOM.integers(0, 9, (3, 5)))
    weights, bias = jnp.asarray(RANDOM.integers(0, 2, (3, 5)), jnp.float32), array(9)
    base, factors = array(4, 9), (array(4, 2), array(2, 9))

    def chunked(hidden, factors):
        head = Adapted(base, *factors, None, 0.5)
        options = {"chunk_size": 2, "bias": bias, "softcap": softcap, "z_loss": 0.01}
        return chunked_cross_entropy(hidden, head, targets, weights, **options).loss

    def dense(hidden, factors):
        logits = hidden @ (base + 0.5 * factors[0] @ factors[1]) + bias[None, None]
        logits = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
        return cross_entropy(logits, targets, weights, z_loss=0.01).loss

    found, expected = (
        jax.jit(jax.value_and_grad(f, (0, 1)))(hidden, factors) for f in (chunked, dense)
    )
    for ours, wanted in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


def test_a_chunked_loss_has_no_gradient_of_a_frozen_head():
    hidden, head = array(3, 5, 4), array(4, 9)
    targets = jnp.zeros((3, 5), jnp.int32)

    def loss(hidden, head):
        return chunked_cross_entropy(hidden, head, targets, chunk_size=2).loss

    frozen, both = (
        jax.make_jaxpr(jax.grad(loss, wanted))(hidden, head).jaxpr for wanted in (0, (0, 1))
    )
    counts = [
        sum(
            e.primitive.name == "dot_general" and e.outvars[0].aval.shape == head.shape
            for e in found
        )
        for found in (list(equations(frozen)), list(equations(both)))
    ]
    assert counts == [0, 1]
    expected = jax.grad(loss, (0, 1))(hidden, head)[0]
    np.testing.assert_array_equal(jax.grad(loss)(hidden, head), expected)


def test_shapes_that_do_not_fit():
    for kernel, bias in (
        (Quantized(jnp.zeros((5, 4), jnp.int8), jnp.ones(4)), None),
        (Adapted(array(6, 4), array(6, 2), array(3, 4), None, 1.0), None),
        (Adapted(array(6, 4), array(5, 2), array(2, 4), None, 1.0), None),
        (Transposed(array(4, 5), (4,)), None),
        (Transposed(array(4, 6), (4,)), array(5)),
    ):
        with pytest.raises(AssertionError):
            linear(array(7, 6), kernel, bias)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Diagonal(KernelForm):
    """A form of one's own."""

    values: jax.Array

    @property
    def like(self):
        return jax.ShapeDtypeStruct(self.values.shape * 2, self.values.dtype)

    def dense(self, contracted):
        return jnp.diag(self.values)

    def output_sizes(self, contracted):
        return output_sizes(self.like, contracted)

    def product(self, x, contract, dtype):
        return (x * jnp.expand_dims(self.values, range(x.ndim - 1))).astype(dtype)


def test_dense_is_the_kernel_that_linear_multiplies_with():
    kernel, matrix = array(4, 2, 3), array(6, 4)
    forms = {
        "array": kernel,
        "transposed": Transposed(matrix, (2, 3)),
        "quantized": quantized(kernel, 1),
        "part": Part(Transposed(matrix, (6,)), 1, (5,)),
        "adapted": Adapted(kernel, array(4, 2), array(2, 2, 3), None, 0.5),
        "diagonal": Diagonal(array(4)),
    }
    for name, form in forms.items():
        rows = linear(jnp.eye(4), form)
        np.testing.assert_allclose(dense(form, (4,)), rows, atol=1e-6, err_msg=name)
