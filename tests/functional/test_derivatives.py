"""Each derivative of each public function, beside that of the same in plain `jnp` in float64."""

import inspect
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivative_cases import CASES, WITHOUT_EXAMPLE

import jaxformer.functional as F
from jaxformer.functional import attention, causal
from jaxformer.functional.attention import splash
from jaxformer.functional.derivatives import differentiable

# Those whose rules are not JAX's own, or that JAX recomputes or scans.
QUICK = (
    "layer_norm",
    "rotary_angles",
    "chunked_cross_entropy",
    "top_p_filter",
)


def inner(x, y):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, x, y)))


def derivatives(function, x, v):
    """The derivatives of a scalar function at `x` along `v`, by every transformation of JAX."""
    gradient = jax.grad(function)
    rows = jax.tree.map(lambda a: jnp.stack([a, 1.5 * a + 0.1]), x)
    first = next(iter(x))
    axes = {name: 0 if name == first else None for name in x}
    shared = x | {first: rows[first]}
    along = jax.tree.map(lambda a: 0.3 * a + 0.2, shared)
    mapped = jax.vmap(function, (axes,))

    def forward(x, v):
        return jax.jvp(function, (x,), (v,))

    def slope(x):
        return forward(x, v)[1]

    return {
        "jvp": lambda: jax.jvp(function, (x,), (v,)),
        "linearize": lambda: jax.linearize(function, x)[1](v),
        "grad": lambda: gradient(x),
        "grad of checkpoint": lambda: jax.grad(jax.checkpoint(function))(x),
        "forward over forward": lambda: jax.jvp(slope, (x,), (v,))[1],
        "forward over reverse": lambda: jax.jvp(gradient, (x,), (v,))[1],
        "reverse over reverse": lambda: jax.grad(lambda x: inner(gradient(x), v))(x),
        "reverse over forward": lambda: jax.grad(slope)(x),
        "vmap": lambda: jax.vmap(function)(rows),
        "vmap of grad": lambda: jax.vmap(gradient)(rows),
        "grad of vmap": lambda: jax.grad(lambda x: jnp.sum(mapped(x)))(shared),
        "vmap of jvp": lambda: jax.vmap(forward, (axes, axes))(shared, along),
        "jvp of vmap": lambda: jax.jvp(mapped, (shared,), (along,)),
    }


def assert_equal_derivatives(function, plain, inputs, tolerance, kinds=()):
    """Compares `derivatives`, all or of some kinds, of a random function of the results.

    The functions take the inputs by their names.
    """
    x = jax.tree.map(jnp.asarray, inputs)
    random = np.random.default_rng(1)
    v = jax.tree.map(lambda a: jnp.asarray(random.normal(size=a.shape), a.dtype), x)
    weights = random.normal(size=jax.eval_shape(lambda x: function(**x), x).shape)

    def objective(function):
        return lambda p: jnp.sum(weights * jnp.sin(function(**p)))

    @partial(jax.jit, static_argnums=0)
    def all_of(function, x, v):
        found = derivatives(objective(function), x, v)
        return {kind: found[kind]() for kind in kinds or found}

    actual = all_of(function, x, v)
    with jax.numpy_rank_promotion("allow"):
        expected = all_of(plain, x, v)
    for kind in expected:
        for a, b in zip(*map(jax.tree.leaves, (actual[kind], expected[kind])), strict=True):
            scale = max(1.0, float(jnp.max(jnp.abs(b))))
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=kind)


def test_blockwise_attention_in_both_modes():
    kinds = ("forward over reverse", "reverse over reverse", "vmap of jvp")
    with jax.enable_x64(True):
        assert_equal_derivatives(*CASES["attention"], kinds)


@pytest.mark.more
@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("name", CASES)
def test_every_derivative_is_that_of_the_plain_function(name):
    with jax.enable_x64(True):
        assert_equal_derivatives(*CASES[name])


def test_every_exported_function_has_an_example():
    functions = {name: getattr(F, name) for name in F.__all__}
    # Functions of functions; and of sounds, which test_audio.py has.
    elsewhere = re.compile(r"\.(audio|terms|testing)\b")
    found = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and not elsewhere.search(function.__module__)
    }
    shown = {name.split()[0] for name in CASES}
    assert found - shown == WITHOUT_EXAMPLE


@pytest.mark.slow
def test_an_accelerator_kernel_keeps_its_gradient_and_takes_the_rest_from_blockwise(monkeypatch):
    monkeypatch.setattr(splash, "unsupported", lambda *_: None)
    random = np.random.default_rng(0)
    names = ("query", "key", "value")
    inputs = {name: random.normal(size=(2, 5, 4, 64)).astype(np.float32) for name in names}
    kernel, reference = (
        partial(attention, mask=causal(), implementation=name) for name in ("splash", "reference")
    )
    assert_equal_derivatives(kernel, reference, inputs, 2e-5)


@pytest.mark.more
def test_rules_of_a_function_with_integers_zeros_and_static_arguments():
    """A tangent of one argument alone asks for nothing of the others."""
    asked = []

    def linearize(moves, x, index, *, power):
        asked.append(moves)
        return function(x, index, power=power), (x, index)

    function = differentiable(
        lambda x, index, *, power: (x[index] ** power, index + 1),
        linearize,
        lambda kept, tangents, *, power: (
            power * kept[0][kept[1]] ** (power - 1) * tangents[0][kept[1]],
            None,
        ),
        lambda kept, cotangents, *, power: (
            jnp.zeros_like(kept[0])
            .at[kept[1]]
            .set(power * kept[0][kept[1]] ** (power - 1) * cotangents[0]),
            None,
        ),
    )

    def third_cubed(x):
        return function(x, jnp.array(2), power=3)[0]

    x = jnp.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(jax.grad(third_cubed)(x), [0, 0, 27, 0])
    np.testing.assert_allclose(jax.hessian(third_cubed)(x), np.diag([0, 0, 18.0, 0]))
    assert asked[0] == (True, False)
