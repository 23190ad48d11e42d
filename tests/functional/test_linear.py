import sys
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec
from jaxprs import equations

from jaxformer.functional import linear
from jaxformer.functional.linear import Quantized, Transposed, dense, dot, quantized, transposed

P = PartitionSpec


def problem(batch, contracted, outputs, dtype=np.float32, bias=True, seed=0):
    """Random x, kernel, bias and output cotangent."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(*batch, *contracted)).astype(dtype)
    kernel = random.normal(size=(*contracted, *outputs)).astype(dtype)
    added = random.normal(size=outputs).astype(dtype) if bias else None
    return (x, kernel, added), random.normal(size=(*batch, *outputs)).astype(dtype)


def exact(inputs, cotangent, contract):
    """The value and the gradients in float64, on matrices."""
    x, kernel, bias = (None if a is None else np.asarray(a, np.float64) for a in inputs)
    rows = x.reshape(-1, np.prod(kernel.shape[:contract]))
    matrix = kernel.reshape(rows.shape[1], -1)
    dy = np.asarray(cotangent, np.float64).reshape(-1, matrix.shape[1])
    y = (rows @ matrix).reshape(cotangent.shape)
    gradients = (dy @ matrix.T).reshape(x.shape), (rows.T @ dy).reshape(kernel.shape)
    if bias is None:
        return y, (*gradients, None)
    return y + bias, (*gradients, dy.sum(0).reshape(bias.shape))


@partial(jax.jit, static_argnums=2)
def value_and_gradients(inputs, cotangent, contract):
    value, pull = jax.vjp(lambda inputs: linear(*inputs, contract=contract), inputs)
    return value, pull(cotangent)[0]


def assert_close(actual, expected, tolerance):
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance * max(1, np.abs(y).max()), rtol=0)


@given(
    batch=st.sampled_from([(3,), (2, 5), ()]),
    contracted=st.sampled_from([(7,), (3, 5), (1,)]),
    outputs=st.sampled_from([(11,), (2, 3), (2, 1, 4)]),
    bias=st.booleans(),
)
def test_values_and_gradients(batch, contracted, outputs, bias):
    with jax.enable_x64(True):
        inputs, cotangent = problem(batch, contracted, outputs, np.float64, bias)
        actual = value_and_gradients(inputs, cotangent, len(contracted))
        assert_close(actual, exact(inputs, cotangent, len(contracted)), 1e-12)


@pytest.mark.parametrize("kernel_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("batch", [(33,), (1, 1)])
def test_bfloat16_over_a_float32_master_weight(kernel_dtype, batch):
    (x, kernel, bias), cotangent = problem(batch, (70,), (90,))
    inputs = (jnp.bfloat16(x), kernel_dtype(kernel), jnp.float32(bias))
    value, (dx, dkernel, dbias) = value_and_gradients(inputs, jnp.bfloat16(cotangent), 1)
    assert [a.dtype for a in (value, dx, dkernel, dbias)] == [
        jnp.bfloat16,
        jnp.bfloat16,
        kernel_dtype,
        jnp.float32,
    ]
    # Given what bfloat16 operands hold, the products themselves are those of float32.
    rounded = [jnp.bfloat16(a) for a in (x, kernel, bias)]
    expected, gradients = exact(rounded, jnp.bfloat16(cotangent), 1)
    assert_close(value, expected, 2**-7)
    assert_close(dx, gradients[0], 2**-8)
    assert_close(dkernel, gradients[1], 1e-6 if kernel_dtype == jnp.float32 else 2**-8)
    assert_close(dbias, gradients[2], 1e-6)


@given(
    batch=st.sampled_from([(3,), (2, 5), (1, 1), ()]),
    contracted=st.sampled_from([(7,), (3, 5)]),
    outputs=st.sampled_from([(11,), (2, 3)]),
    bias=st.booleans(),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
    platform=st.sampled_from(["cpu", "gpu"]),
)
def test_a_transposed_kernel_maps_as_it_does_in_order(
    batch, contracted, outputs, bias, dtype, platform
):
    (x, kernel, added), _ = problem(batch, contracted, outputs, bias=bias)
    transposed = Transposed(jnp.array(kernel.reshape(-1, np.prod(outputs)).T), outputs)
    options = {"contract": len(contracted), "dtype": jnp.float32}
    expected = linear(x.astype(dtype), kernel, added, **options)
    with mock.patch.object(sys.modules[dot.__module__], "platform", return_value=platform):
        actual = linear(x.astype(dtype), transposed, added, **options)
    assert_close(actual, expected, 1e-6)


# The widths whose rows share a set of a CPU's cache are multiples of 2048 and 4096.
@pytest.mark.parametrize(
    ("dtype", "width"), [("bfloat16", 2048), ("bfloat16", 40), ("float32", 2048), ("int8", 4096)]
)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_any_number_of_rows_is_multiplied_with_a_transposed_kernel(dtype, width, platform):
    random = np.random.default_rng(0)
    kernel, x = random.normal(size=(width, 6)), random.normal(size=(130, width))
    with mock.patch.object(sys.modules[dot.__module__], "platform", return_value=platform):
        if dtype == "int8":
            rounded = quantized(jnp.float32(kernel), 1)
            scales = rounded.scales.reshape(2, 3)
            form, tolerance = Quantized(transposed(rounded.values, (2, 3)), scales), 0.02
        else:
            form, tolerance = transposed(jnp.asarray(kernel, dtype), (2, 3)), 1e-5
        held = np.float64(dense(form, (width,)))
        assert_close(held.reshape(width, 6), kernel, 1 / 250)
        for rows in (1, 2, 15, 16, 17, 33, 128, 130):
            given = jnp.asarray(x[:rows], "bfloat16" if dtype == "bfloat16" else "float32")
            found = jax.jit(partial(linear, dtype=jnp.float32))(given, form)
            assert_close(found, np.tensordot(np.float64(given), held, 1), tolerance)


def test_all_three_products_run_in_bfloat16_and_accumulate_in_float32():
    (x, kernel, bias), _ = problem((4,), (5,), (6,))
    inputs = (jnp.bfloat16(x), kernel, bias)

    def loss(inputs):
        # A float32 loss, as is usual: its cotangent arrives in float32.
        return jnp.sum(linear(*inputs).astype(jnp.float32) ** 2)

    found = [
        [v.aval.dtype for v in (*equation.invars, *equation.outvars)]
        for equation in equations(jax.make_jaxpr(jax.grad(loss))(inputs).jaxpr)
        if equation.primitive.name == "dot_general"
    ]
    assert found == [[jnp.bfloat16, jnp.bfloat16, jnp.float32]] * 3


def test_dot_accumulates_in_float32_or_better():
    many = jnp.full((1, 4096), 1.0 / 64, jnp.bfloat16)
    last = (((1,), (1,)), ((), ()))
    assert dot(many, many, last) == 1.0
    assert dot(many, many, last).dtype == jnp.float32
    with jax.enable_x64(True):
        assert dot(jnp.float64(many), jnp.float64(many), last).dtype == jnp.float64


# Over a mesh -----------------------------------------------------------------------------------

ROWS = ("data", "fsdp")
# Specs of x, kernel, bias and y: the four linear maps of a block, and one left whole.
LAYOUTS = {
    "whole": (P(None, None, None), P(None, None), P(None), P(None, None, None)),
    "column": (P(ROWS, None, None), P("fsdp", "tensor"), P("tensor"), P(ROWS, None, "tensor")),
    "row": (P(ROWS, None, "tensor"), P("tensor", "fsdp"), P("fsdp"), P(ROWS, None, None)),
    "heads": (
        P(ROWS, None, None),
        P("fsdp", "tensor", None),
        P("tensor", None),
        P(ROWS, None, "tensor", None),
    ),
    "output": (
        P(ROWS, None, "tensor", None),
        P("tensor", None, "fsdp"),
        P("fsdp"),
        P(ROWS, None, None),
    ),
    "both on one": (
        P(ROWS, None, None),
        P(("fsdp", "tensor"), None),
        P(None),
        P(ROWS, None, None),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_sharded_equals_whole(name):
    specs = LAYOUTS[name]
    contracted, outputs = ((4, 6), (8,)) if name == "output" else ((8,), (12,))
    outputs = (4, 6) if name == "heads" else outputs
    inputs, cotangent = problem((4, 3), contracted, outputs)
    contract = len(contracted)
    mesh = jax.make_mesh((2, 2, 2), (*ROWS, "tensor"), axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        *placed, dy = map(jax.device_put, (*inputs, cotangent), specs)
        value, gradients = value_and_gradients(tuple(placed), dy, contract)
    assert value.sharding.spec == specs[3]
    for x, gradient in zip(placed, gradients, strict=True):
        assert gradient.sharding == x.sharding
    assert_close((value, gradients), exact(inputs, cotangent, contract), 1e-6)


@pytest.mark.optimized
def test_the_kernel_is_gathered_and_the_activations_stay_where_they_are():
    inputs, cotangent = problem((8, 16), (32,), (64,), bias=False)
    mesh = jax.make_mesh((1, 8, 1), (*ROWS, "tensor"), axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        specs = P(ROWS, None, None), P("fsdp", "tensor"), P(ROWS, None, "tensor")
        x, kernel, dy = map(jax.device_put, (*inputs[:2], cotangent), specs)
        compiled = value_and_gradients.lower((x, kernel, None), dy, 1).compile()
    text = compiled.as_text()
    assert text.count(" all-gather(") >= 1
    # No device ever holds more than its own row of the eight.
    assert "f32[8,16," not in text
