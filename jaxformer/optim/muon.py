"""Muon for parameters that keep their axes apart, stack their layers and are sharded."""

import math
from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from jaxformer.optim.parameter_roles import hidden_matrix, map_axes


def scale_by_muon(
    axes: Any,
    others: optax.GradientTransformation,
    *,
    momentum: float,
    nesterov: bool,
    newton_schulz_steps: int,
    update_rms: float,
    eps: float,
) -> optax.GradientTransformation:
    r"""Replaces the momentum of each hidden matrix by the nearest orthogonal matrix.

    .. math::
      M_t = \beta M_{t-1} + (1 - \beta) G_t, \qquad
      \Delta_t = r \sqrt{\max(m, n)} \; \mathrm{orthogonal}(M_t), \quad M_t \in R^{m \times n}

    where a few Newton-Schulz iterations approximate the orthogonal factor. A matrix is all inputs
    by all outputs of one layer, however many axes hold them.

    Args:
        axes: The parameters' tree with a tuple of logical axis names for each.
        others: What to do with the parameters that are no hidden matrices.
        momentum: β.
        nesterov: Whether to orthogonalise the momentum one step ahead.
        newton_schulz_steps: Number of iterations.
        update_rms: R, the root mean square of an update.
        eps: Added to the norm by which the momentum is divided first.

    Returns:
        The transformation.

    References:
        Jordan et al., Muon (https://kellerjordan.github.io/posts/muon);
        Liu et al., Muon is Scalable for LLM Training (https://arxiv.org/abs/2502.16982), for r.
    """

    def dimension_numbers(path, names):
        sides = hidden_matrix(path, names)
        return MuonDimensionNumbers(*sides) if sides else optax.MaskedNode()

    dimensions = map_axes(dimension_numbers, axes)
    orthogonalise = optax.contrib.scale_by_muon(
        ns_steps=newton_schulz_steps,
        beta=momentum,
        eps=eps,
        nesterov=nesterov,
        weight_dimension_numbers=dimensions,
    )

    def scale(x, sides):
        longest = max(math.prod(x.shape[i] for i in side) for side in sides)
        return update_rms * math.sqrt(longest) * x

    rescale = optax.stateless(lambda updates, _: jax.tree.map(scale, updates, dimensions))
    return optax.partition(
        {"hidden": optax.chain(_placed_by_compiler(orthogonalise), rescale), "other": others},
        map_axes(lambda *role: "hidden" if hidden_matrix(*role) else "other", axes),
    )


def _placed_by_compiler(inner):
    """`inner`, whose inner shardings the compiler chooses; results have those of the inputs."""
    # An iteration contracts sharded axes, and optax cannot name a sharding for an explicit mesh.

    def update(updates, state, params=None):
        if not jax.sharding.get_abstract_mesh().explicit_axes:
            return inner.update(updates, state, params)
        shardings = jax.tree.map(lambda x: jax.typeof(x).sharding, (updates, state))
        automatic = jax.sharding.auto_axes(inner.update, out_sharding=shardings)
        return automatic(updates, state, params)

    return optax.GradientTransformation(inner.init, update)
