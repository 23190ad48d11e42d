"""Where the norm sits: each arrangement against its formula, written out for two sublayers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import BranchNorm, Parallel, PostNorm, PreNorm, SandwichNorm, StreamNorm

# No two of these maps commute, so that any other order or place gives another number.
F = (lambda x: jnp.sin(3 * x) + 0.3, lambda x: x**2 - 0.7, lambda x: jnp.exp(-x) + 0.1)
N = tuple(
    lambda x, a=a, b=b: jnp.tanh(a * x + b) for a, b in np.random.default_rng(0).random((6, 2))
)


def pre(x, f, n):
    h = x + f[0](n[0](x))
    return h + f[1](n[1](h))


def post(x, f, n):
    h = n[0](x + f[0](x))
    return n[1](h + f[1](h))


def stream(x, f, n):
    h = n[0](x) + f[0](n[0](x))
    return n[1](h) + f[1](n[1](h))


def branch(x, f, n):
    h = x + n[0](f[0](x))
    return h + n[1](f[1](h))


def sandwich(x, f, n):
    h = x + n[1](f[0](n[0](x)))
    return h + n[3](f[1](n[2](h)))


def shared(x, f, n):
    return x + f[0](n[0](x)) + f[1](n[0](x))


def apart(x, f, n):
    return x + f[0](n[0](x)) + f[1](n[1](x))


FORMULAS = {
    "pre": (PreNorm(), pre, 2, True),
    "post": (PostNorm(), post, 2, False),
    "stream": (StreamNorm(), stream, 2, True),
    "branch": (BranchNorm(), branch, 2, True),
    "sandwich": (SandwichNorm(), sandwich, 4, True),
    "parallel": (Parallel(), shared, 1, True),
    "parallel apart": (Parallel(shared_norm=False), apart, 2, True),
}
each = pytest.mark.parametrize(
    ("residual", "formula", "count", "final_norm"), FORMULAS.values(), ids=FORMULAS.keys()
)


@each
def test_formula_and_derivative(residual, formula, count, final_norm):
    del final_norm
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 5)), jnp.float32)
    assert residual.num_norms(2) == count
    tangent = jnp.ones_like(x)
    actual = jax.jvp(lambda x: residual(x, F[:2], N[:count]), (x,), (tangent,))
    expected = jax.jvp(lambda x: formula(x, F, N), (x,), (tangent,))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@each
def test_three_sublayers_are_two_and_one_more(residual, formula, count, final_norm):
    """Sequential arrangements compose; parallel ones add up."""
    del formula, count, final_norm
    x = jnp.asarray(np.random.default_rng(2).normal(size=(1, 2, 4)), jnp.float32)
    total, two = residual.num_norms(3), residual.num_norms(2)
    one = residual.num_norms(1)
    actual = residual(x, F, N[:total])
    first = residual(x, F[:2], N[:two])
    if isinstance(residual, Parallel):
        expected = first + residual(x, F[2:], N[total - one : total]) - x
    else:
        assert total == two + one
        expected = residual(first, F[2:], N[two:total])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@each
def test_a_stream_that_no_norm_bounds_asks_for_a_final_norm(residual, formula, count, final_norm):
    """With silent sublayers the stream passes through, or leaves a post-norm block normalised."""
    del formula
    x = jnp.full((1, 2, 4), 50.0)
    silent, norm = (jnp.zeros_like,) * 2, lambda x: x / jnp.maximum(jnp.abs(x).max(), 1.0)
    out = residual(x, silent, (norm,) * count)
    assert residual.final_norm is final_norm
    bounded = not final_norm or isinstance(residual, StreamNorm)
    np.testing.assert_array_equal(out, x / 50 if bounded else x)


@pytest.mark.parametrize(
    "residual", [PreNorm(), PostNorm(), BranchNorm(), SandwichNorm(), Parallel(shared_norm=False)]
)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_number_of_norms_is_an_error(residual, change):
    norms = N[: residual.num_norms(2) + change]
    with pytest.raises(ValueError, match="argument"):
        residual(jnp.ones((1, 1, 2)), F[:2], norms)
