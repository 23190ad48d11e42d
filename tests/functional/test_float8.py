"""Products in float8, next to NumPy's with the numbers that ml_dtypes rounds."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxformer.functional.float8 import Rounded, rounded
from jaxformer.functional.linear import linear

LARGEST = {ml_dtypes.float8_e4m3fn: 448, ml_dtypes.float8_e5m2: 57344}
E4M3, E5M2 = LARGEST


def near(x, dtype):
    """The nearest numbers to x that are a float8 times the scale of all of x."""
    scale = np.float32(np.abs(x).max() / LARGEST[dtype])
    return (np.asarray(x, np.float32) / scale).astype(dtype).astype(np.float64) * scale


def problem(rows=(3, 5), inputs=8, outputs=6):
    random = np.random.default_rng(0)
    shapes = (*rows, inputs), (inputs, outputs), (*rows, outputs)
    # Of sizes that a float8 without a scale would turn to zero, or into infinity.
    sizes = 1e-4, 3.0, 1e6
    return [
        (size * random.normal(size=shape)).astype(np.float32)
        for size, shape in zip(sizes, shapes, strict=True)
    ]


def value_and_gradients(x, kernel, cotangent):
    value, pull = jax.vjp(lambda x, kernel: linear(x, Rounded(kernel)), x, kernel)
    return value, *pull(cotangent)


def expected(x, kernel, cotangent):
    x8, kernel8, cotangent8 = near(x, E4M3), near(kernel, E4M3), near(cotangent, E5M2)
    flat = x8.reshape(-1, x.shape[-1]), cotangent8.reshape(-1, cotangent.shape[-1])
    return x8 @ kernel8, cotangent8 @ kernel8.T, flat[0].T @ flat[1]


def assert_close(actual, wanted):
    for one, other in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


def test_the_three_products_are_those_of_the_rounded_operands():
    inputs = problem()
    assert_close(value_and_gradients(*map(jnp.asarray, inputs)), expected(*inputs))


def test_results_have_the_dtypes_of_x_and_of_the_kernel():
    x, kernel, _ = problem()
    value, pull = jax.vjp(lambda x, k: linear(x, Rounded(k)), jnp.bfloat16(x), jnp.asarray(kernel))
    dx, dkernel = pull(value)
    assert [value.dtype, dx.dtype, dkernel.dtype] == [jnp.bfloat16, jnp.bfloat16, jnp.float32]


def test_what_is_kept_for_the_backward_pass_has_eight_bits():
    x, kernel, _ = map(jnp.asarray, problem())
    _, pull = jax.vjp(lambda x, kernel: linear(x, Rounded(kernel)), x, kernel)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.size > 1]
    assert {leaf.dtype for leaf in kept} == {jnp.dtype(jnp.float8_e4m3fn)}


def test_zeros_stay_zeros_and_what_is_not_finite_does_not():
    values, _ = rounded(jnp.zeros((2, 3)), jnp.float8_e4m3fn)
    np.testing.assert_array_equal(values.astype(jnp.float32), 0)
    x, kernel, _ = problem()
    for bad in (np.inf, np.nan):
        x[0, 0, 0] = bad
        assert not np.isfinite(linear(jnp.asarray(x), Rounded(jnp.asarray(kernel)))).all()


def test_forward_mode_and_vmap():
    x, kernel, _ = map(jnp.asarray, problem())

    def function(x, kernel):
        return linear(x, Rounded(kernel))

    value, moved = jax.jvp(function, (x, kernel), (x, jnp.zeros_like(kernel)))
    np.testing.assert_allclose(value, moved, rtol=0.3, atol=0.1 * np.abs(value).max())
    rows = jax.vmap(function, (0, None))(x, kernel)
    for row, each in zip(x, rows, strict=True):
        np.testing.assert_allclose(each, function(row, kernel), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("of_x", "of_kernel", "of_y"),
    [
        (P("fsdp", None, None), P("fsdp", "tensor"), P("fsdp", None, "tensor")),
        (P("fsdp", None, "tensor"), P("tensor", "fsdp"), P("fsdp", None, None)),
    ],
)
def test_a_mesh_has_the_scales_of_whole_tensors(of_x, of_kernel, of_y):
    inputs = problem((4, 3), 8, 12)
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        placed = map(jax.device_put, inputs, (of_x, of_kernel, of_y))
        found = jax.jit(value_and_gradients)(*placed)
    assert [each.sharding.spec for each in found] == [of_y, of_x, of_kernel]
    assert_close(found, expected(*inputs))
