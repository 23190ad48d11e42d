"""Adafactor for parameters that keep their axes apart and stack their layers."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxformer.optim.parameter_roles import map_axes, matrix, own_dimensions


class AdafactorState(NamedTuple):
    """The number of updates made and each parameter's mean squares."""

    count: jax.Array
    mean_squares: Any
    """In place of each parameter a tuple: (over outputs, over inputs), or (elementwise,)."""


def scale_by_adafactor(
    axes: Any,
    *,
    decay_exponent: float,
    min_dim_size_to_factor: int,
    clipping_threshold: float,
    min_parameter_scale: float,
    eps: float,
) -> optax.GradientTransformation:
    r"""Divides by a factored root mean square and multiplies by the parameter's own scale.

    .. math::
      R_t &= \beta_t R_{t-1} + (1 - \beta_t)\, \mathrm{mean}_{out}(G_t^2 + \epsilon) \\
      C_t &= \beta_t C_{t-1} + (1 - \beta_t)\, \mathrm{mean}_{in}(G_t^2 + \epsilon) \\
      U_t &= G_t / \sqrt{R_t C_t / \mathrm{mean}(R_t)}, \qquad \beta_t = 1 - t^{-c} \\
      \Delta_t &= \max(s, \mathrm{rms}(W)) \; U_t / \max(1, \mathrm{rms}(U_t) / d)

    A matrix's factors run over all its inputs and all its outputs, however many axes hold them, and
    every layer of a stack has its own statistics: stacking changes nothing.
    """
    dimensions = map_axes(lambda path, names: own_dimensions(names), axes)
    matrices = map_axes(matrix, axes)

    def averaged(x, sides):
        """The dimensions over which each mean square of `x` is taken."""
        if sides is None:
            return ((),)
        sizes = [math.prod(x.shape[i] for i in side) for side in sides]
        return (sides.outputs, sides.inputs) if min(sizes) >= min_dim_size_to_factor else ((),)

    def init(params):
        def zeros(x, sides):
            means = [jnp.mean(x, axis, keepdims=True) for axis in averaged(x, sides)]
            return tuple(jnp.zeros_like(mean) for mean in means)

        return AdafactorState(jnp.zeros([], jnp.int32), jax.tree.map(zeros, params, matrices))

    def update(updates, state, params):
        beta = 1 - (state.count + 1.0) ** -decay_exponent

        def accumulate(g, sides, old):
            square = jnp.square(g) + eps
            new = [jnp.mean(square, axis, keepdims=True) for axis in averaged(g, sides)]
            return tuple(beta * a + (1 - beta) * b for a, b in zip(old, new, strict=True))

        def scale(g, mean_squares, sides, own, w):
            if len(mean_squares) == 1:
                u = g * jax.lax.rsqrt(mean_squares[0])
            else:
                rows, columns = mean_squares
                # One root each: the product of the two means can leave the range of float32.
                relative = rows / jnp.mean(rows, sides.inputs, keepdims=True)
                u = g * jax.lax.rsqrt(relative) * jax.lax.rsqrt(columns)
            u /= jnp.maximum(1, _rms(u, own) / clipping_threshold)
            return u * jnp.maximum(min_parameter_scale, _rms(w, own))

        mean_squares = jax.tree.map(accumulate, updates, matrices, state.mean_squares)
        updates = jax.tree.map(scale, updates, mean_squares, matrices, dimensions, params)
        return updates, AdafactorState(optax.safe_increment(state.count), mean_squares)

    return optax.GradientTransformation(init, update)


def _rms(x, axis):
    return jnp.sqrt(jnp.mean(jnp.square(x), axis, keepdims=True))
