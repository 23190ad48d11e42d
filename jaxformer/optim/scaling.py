"""Per-parameter scaling of updates: LAMB's trust ratio, and layer-wise learning rates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.models.parameters import Parameters, group_sizes, stack_path, without_part_prefix
from jaxformer.optim.parameter_roles import layer_dimensions, map_axes, matrix


def scale_by_trust_ratio(axes: Any) -> optax.GradientTransformation:
    r"""Scales the update of each matrix and table to the norm of the parameter.

    .. math:: \Delta \leftarrow \frac{\lVert W \rVert}{\lVert \Delta \rVert} \Delta

    Every layer of a stack has a separate ratio. It is 1 if either norm is 0; norms and biases are
    not scaled, as in the authors' code.
    """
    dimensions = map_axes(lambda path, names: layer_dimensions(names), axes)
    matrices = map_axes(matrix, axes)

    def scale(update, parameter, own, sides):
        if sides is None:
            return update
        parameter_norm = _norm(parameter, own)
        update_norm = _norm(update, own)
        both = (parameter_norm > 0) & (update_norm > 0)
        return update * jnp.where(both, parameter_norm / jnp.where(both, update_norm, 1), 1)

    def update(updates, params):
        return jax.tree.map(scale, updates, params, dimensions, matrices)

    return optax.stateless(update)


def scale_by_depth(decay: float) -> optax.GradientTransformation:
    r"""Scales each update by the depth of its parameter.

    .. math:: u_l \leftarrow \gamma^{L + 1 - l}\, u_l

    where l is 0 for embeddings and positions, 1 to L for the blocks, and L + 1 for the final norm,
    pooler and heads.
    """

    def scale(updates: Parameters, params: Parameters | None = None) -> Parameters:
        del params
        factors = depth_factors({name: update.shape for name, update in updates.items()}, decay)
        return {name: update * factors[name] for name, update in updates.items()}

    return optax.stateless(scale)


def depth_factors(shapes: dict[str, tuple[int, ...]], decay: float) -> dict[str, np.ndarray]:
    """Returns the factor of each parameter, with one value per layer of a stack."""
    paths = {name: stack_path(name) for name in shapes}
    sizes = group_sizes(shapes)
    stacked = {name: path for name, path in paths.items() if path is not None}
    depth = {path.stack: shapes[name][0] * sizes[path.stack] for name, path in stacked.items()}

    def factor(name: str) -> np.ndarray:
        if path := stacked.get(name):
            rows, *rest = shapes[name]
            layers = np.arange(rows) * sizes[path.stack] + path.block
            powers = decay ** (depth[path.stack] - layers)
            return powers.reshape(rows, *[1] * len(rest)).astype(np.float32)
        return np.float32(decay ** (1 + _layers_above(name, depth)) if is_input(name) else 1.0)

    return {name: factor(name) for name in shapes}


def is_input(name: str) -> bool:
    """Whether a parameter comes before the first block: embeddings, positions, patches."""
    tables = ("embedding.", "decoder_embedding.", "patch_projection.")
    tokens = ("class_token", "distillation_token", "mask_token")
    return without_part_prefix(name).startswith(tables + tokens) or ".inputs." in name


def _layers_above(name: str, depth: dict[str, int]) -> int:
    """Returns the depth of the deepest stack that an input feeds."""
    own = [layers for prefix, layers in depth.items() if prefix.split(".")[0] == name.split(".")[0]]
    return max(own or depth.values(), default=0)


def _norm(x, axis):
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis, keepdims=True))
