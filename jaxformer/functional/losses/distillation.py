"""Distillation losses: distances between predictions and between hidden states."""

import jax
import jax.numpy as jnp

from jaxformer.checks import POSITIVE
from jaxformer.functional.arrays import assert_axes, assert_floating, check_numbers


def soft_divergence(student: jax.Array, teacher: jax.Array, *, temperature: float) -> jax.Array:
    r"""KL divergence of a student's distribution from its teacher's, both with a temperature.

    .. math::
      \ell = \tau^2 \sum_v p_v (\log p_v - \log q_v), \qquad
      p = \mathrm{softmax}(t / \tau), \quad q = \mathrm{softmax}(s / \tau)

    The factor makes the scale of gradients independent of the temperature. Arithmetic is in
    float32.

    Args:
        student: Logits s `[..., V]`.
        teacher: Logits t `[..., V]`; no gradient flows to them.
        temperature: τ; values above 1 give unlikely choices more weight.

    Returns:
        float32 `[...]`.

    References:
        Hinton et al., Distilling the Knowledge in a Neural Network
        (https://arxiv.org/abs/1503.02531).
    """
    _assert_alike(student, teacher)
    check_numbers(temperature=(temperature, POSITIVE))
    student, teacher = (x.astype(jnp.float32) / temperature for x in (student, teacher))
    log_q = jax.nn.log_softmax(student)
    log_p = jax.nn.log_softmax(jax.lax.stop_gradient(teacher))
    return temperature**2 * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def cosine_distance(student: jax.Array, teacher: jax.Array) -> jax.Array:
    r"""One minus the cosine of the angle between two states.

    .. math:: \ell = 1 - \frac{s \cdot t}{|s|\,|t|}

    Arithmetic is in float32; a zero state has distance 1 to all others.

    Args:
        student: s `[..., D]`.
        teacher: t `[..., D]`; no gradient flows to it.

    Returns:
        float32 `[...]`.

    References:
        Sanh et al., DistilBERT (https://arxiv.org/abs/1910.01108).
    """
    _assert_alike(student, teacher)
    student = student.astype(jnp.float32)
    teacher = teacher.astype(jnp.float32)
    teacher = jax.lax.stop_gradient(teacher)
    squares = jnp.sum(student**2, axis=-1) * jnp.sum(teacher**2, axis=-1)
    # The square root has no gradient at 0.
    return 1.0 - jnp.sum(student * teacher, axis=-1) * jax.lax.rsqrt(squares + 1e-24)


def _assert_alike(student, teacher):
    assert_axes(student=(student, "... D"))
    assert_axes(teacher=(teacher, " ".join(map(str, student.shape))))
    assert_floating(student=student, teacher=teacher)
