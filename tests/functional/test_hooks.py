"""Hooks that are ready to use: what they change, what they leave, and that programs are shared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import ArgumentError
from jaxformer.functional.activations import Hooks, tap, with_hooks
from jaxformer.functional.hooks import (
    add_vector,
    at_heads,
    at_positions,
    mean_ablation,
    replace_with,
    zero,
    zero_head,
)

Z = np.random.default_rng(0).normal(size=(2, 5, 3, 4)).astype(np.float32)  # [B, T, N, H]


def changed(x, index, value):
    x = np.array(x)
    x[index] = value
    return x


def test_zero_head():
    np.testing.assert_array_equal(zero_head(1)(Z), changed(Z, np.s_[:, :, 1], 0))
    np.testing.assert_array_equal(zero_head(0, 2)(Z), changed(Z, np.s_[:, :, [0, 2]], 0))
    pattern = Z.swapaxes(1, 2)
    expected = changed(pattern, np.s_[:, 2], 0)
    np.testing.assert_array_equal(at_heads((2,), zero(), axis=1)(pattern), expected)


def test_add_vector():
    vector = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(add_vector(vector)(Z), Z + vector, rtol=1e-6)
    np.testing.assert_allclose(add_vector(vector, -2)(Z), Z - 2 * vector, rtol=1e-6)
    np.testing.assert_allclose(add_vector(Z[0, 0])(Z), Z + Z[0, 0], rtol=1e-6)


def test_replace_with():
    np.testing.assert_array_equal(replace_with(Z + 1)(Z), Z + 1)
    np.testing.assert_array_equal(replace_with(Z[:1, :1])(Z), np.broadcast_to(Z[:1, :1], Z.shape))
    np.testing.assert_array_equal(replace_with(3.0)(Z), np.full_like(Z, 3))


def test_mean_ablation():
    mean = Z.mean((0, 1), keepdims=True)
    np.testing.assert_allclose(mean_ablation()(Z), np.broadcast_to(mean, Z.shape), rtol=1e-5)


def test_they_compose():
    hook = at_positions((0, 3), at_heads((1,), replace_with(Z + 1)))
    expected = changed(Z, np.s_[:, [[0], [3]], 1], (Z + 1)[:, [[0], [3]], 1])
    np.testing.assert_array_equal(hook(Z), expected)
    np.testing.assert_array_equal(
        at_positions(2, jnp.negative)(Z), changed(Z, np.s_[:, 2], -Z[:, 2])
    )


def test_one_program_serves_all_arrays_and_gradients_reach_them():
    traces = []

    @jax.jit
    def total(hooks, x):
        traces.append(1)
        return with_hooks(lambda x: tap("z", x), hooks.by_pattern())(x).sum()

    for scale in (1.0, 2.0):
        vector = scale * jnp.ones(4)
        hooks = Hooks.of({"z": at_positions((1, 2), add_vector(vector, scale))})
        assert float(total(hooks, Z)) == pytest.approx(
            Z.sum() + scale * scale * 4 * 2 * 3 * 2, rel=1e-5
        )
    assert len(traces) == 1
    gradient = jax.grad(lambda hook: hook(Z).sum())(add_vector(jnp.zeros(4)))
    np.testing.assert_allclose(gradient.vector, np.full(4, 2 * 5 * 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: zero_head(3)(Z),
            "heads = (3,): must be below 3 for an activation",
        ),
        (lambda: at_positions((1, 5), zero())(Z), "positions = (1, 5): must be below 5"),
        (lambda: zero_head(-1), "heads = (-1,): must be non-negative integers"),
        (lambda: at_positions((0.5,), zero()), "positions = (0.5,): must be non-negative integers"),
        (lambda: add_vector(jnp.ones(3))(Z), "vector has shape (3,): must be the last axes of an"),
        (lambda: replace_with(jnp.ones((5, 3, 3)))(Z), "value has shape (5, 3, 3): must broadcast"),
        (lambda: replace_with(jnp.ones((1, *Z.shape)))(Z), "must broadcast to the activation's"),
    ],
)
def test_errors_say_what_is_right(call, message):
    with pytest.raises(ArgumentError) as raised:
        call()
    assert message in str(raised.value)
