"""A normalisation layer: a norm's description and its parameters."""

import jax
from flax import nnx

from jaxformer.functional.norms import Norm
from jaxformer.nn.parameter import constant, parameter, value_of


class NormLayer(nnx.Module):
    """Normalises the last axis as `norm` (LayerNorm, RMSNorm) describes."""

    def __init__(self, key: jax.Array, norm: Norm, dim: int):
        """Declares the scale, and the bias where the norm has one."""
        self.norm = norm
        declared = {
            name: parameter(key, shape, axes, constant(initial))
            for name, (shape, axes, initial) in norm.parameters(dim, axis="norm").items()
        }
        self.scale, self.bias = declared["scale"], declared.get("bias")

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., dim] -> [..., dim]` in the dtype of `x`."""
        return self.norm(x, self.scale[...], value_of(self.bias))


def optional_norm(key: jax.Array, norm: Norm | None, dim: int) -> NormLayer | None:
    """The layer of a norm that a config may leave out."""
    return None if norm is None else NormLayer(key, norm, dim)
