"""Distances between a student and its teacher: those of torch, values and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional.losses.distillation import cosine_distance, soft_divergence

SEEDS = st.integers(0, 2**16)
TEMPERATURES = st.floats(0.25, 8.0)


def pair(seed, *shape, scale=3.0):
    random = np.random.default_rng(seed)
    return (random.normal(scale=scale, size=shape).astype(np.float32) for _ in range(2))


def assert_is_torchs(ours, theirs, seed, rtol, atol):
    """The sum, its gradient by the student, and none by the teacher."""
    torch = pytest.importorskip("torch")
    student, teacher = pair(seed, 5, 7)
    s = torch.tensor(student, dtype=torch.float64, requires_grad=True)
    expected = theirs(torch, s, torch.tensor(teacher, dtype=torch.float64))
    expected.backward()
    total = jax.value_and_grad(lambda *arrays: jnp.sum(ours(*arrays)), (0, 1))
    value, (gradient, none) = total(student, teacher)
    np.testing.assert_allclose(value, expected.item(), rtol=rtol)
    np.testing.assert_allclose(gradient, s.grad, rtol=1e-4, atol=atol)
    assert not none.any()


@pytest.mark.torch
@given(seed=SEEDS, temperature=TEMPERATURES)
def test_divergence_is_torchs(seed, temperature):
    def theirs(torch, s, t):
        logs, shares = torch.log_softmax(s / temperature, -1), torch.softmax(t / temperature, -1)
        return temperature**2 * torch.nn.functional.kl_div(logs, shares, reduction="sum")

    ours = partial(soft_divergence, temperature=temperature)
    assert_is_torchs(ours, theirs, seed, rtol=1e-4, atol=1e-4)


@pytest.mark.torch
@given(seed=SEEDS)
def test_cosine_is_torchs(seed):
    def theirs(torch, s, t):
        return torch.nn.CosineEmbeddingLoss(reduction="sum")(s, t, torch.ones(5))

    assert_is_torchs(cosine_distance, theirs, seed, rtol=1e-5, atol=1e-6)


@given(seed=SEEDS, temperature=TEMPERATURES, shift=st.floats(-5, 5))
def test_divergence_sees_distributions_alone(seed, temperature, shift):
    student, teacher = pair(seed, 4, 6)
    value = soft_divergence(student, teacher, temperature=temperature)
    moved = soft_divergence(student + shift, teacher - shift, temperature=temperature)
    np.testing.assert_allclose(moved, value, rtol=1e-3, atol=1e-4)
    assert (value > 0).all()
    same = soft_divergence(teacher + shift, teacher, temperature=temperature)
    np.testing.assert_allclose(same, 0, atol=1e-5 * temperature**2)


@given(seed=SEEDS, scale=st.floats(0.01, 100.0))
def test_cosine_sees_directions_alone(seed, scale):
    student, teacher = pair(seed, 4, 6)
    value = cosine_distance(student, teacher)
    np.testing.assert_allclose(cosine_distance(scale * student, teacher), value, atol=1e-5)
    np.testing.assert_allclose(cosine_distance(scale * teacher, teacher), 0, atol=1e-5)
    np.testing.assert_allclose(cosine_distance(-scale * teacher, teacher), 2, atol=1e-5)


def test_states_of_zeros_have_finite_gradients():
    zeros, ones = jnp.zeros((2, 3)), jnp.ones((2, 3))
    for student, teacher in ((zeros, ones), (ones, zeros), (zeros, zeros)):
        value, gradient = jax.value_and_grad(lambda s, t: jnp.sum(cosine_distance(s, t)))(
            student, teacher
        )
        assert value == 2.0
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_arithmetic_is_in_float32(dtype):
    student, teacher = (jnp.asarray(x, dtype) for x in pair(0, 4, 64, scale=20.0))
    wide = student.astype(jnp.float32), teacher.astype(jnp.float32)
    for function in (cosine_distance, lambda s, t: soft_divergence(s, t, temperature=2.0)):
        value = function(student, teacher)
        assert value.dtype == jnp.float32
        np.testing.assert_array_equal(value, function(*wide))
