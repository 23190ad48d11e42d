"""LAMB's layer-wise adaptation: the step of a matrix is relative to the matrix."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxformer.optim.parameter_roles import map_axes, matrix, own_dimensions


def scale_by_trust_ratio(axes: Any) -> optax.GradientTransformation:
    r"""Scales the update of each matrix and table to the norm of the parameter.

    .. math:: \Delta \leftarrow \frac{\lVert W \rVert}{\lVert \Delta \rVert} \Delta

    Every layer of a stack has a ratio of its own. It is 1 where either norm is 0; norms and biases
    are left alone, as in the authors' code.

    Args:
        axes: The parameters' tree with a tuple of logical axis names for each.

    Returns:
        The transformation. Its update needs the parameters.

    References:
        You et al., Large Batch Optimization for Deep Learning (https://arxiv.org/abs/1904.00962).
    """
    dimensions = map_axes(lambda path, names: own_dimensions(names), axes)
    matrices = map_axes(matrix, axes)

    def scale(update, parameter, own, sides):
        if sides is None:
            return update
        parameter_norm, update_norm = _norm(parameter, own), _norm(update, own)
        both = (parameter_norm > 0) & (update_norm > 0)
        return update * jnp.where(both, parameter_norm / jnp.where(both, update_norm, 1), 1)

    def update(updates, params):
        return jax.tree.map(scale, updates, params, dimensions, matrices)

    return optax.stateless(update)


def _norm(x, axis):
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis, keepdims=True))
