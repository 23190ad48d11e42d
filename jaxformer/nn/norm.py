"""A normalisation layer: a norm's description and its parameters."""

from collections.abc import Mapping

import jax
from flax import nnx

from jaxformer.functional.assertions import assert_axes
from jaxformer.functional.norms import Norm
from jaxformer.nn.parameter import constant, parameter, value_of


class NormLayer(nnx.Module):
    """Normalises the last axis as `norm` (LayerNorm, RMSNorm) describes."""

    def __init__(self, key: jax.Array, norm: Norm, dim: int, per: Mapping[str, int] | None = None):
        """Declares scale and bias where the norm has them.

        Args:
            key: Of the initial values.
            norm: Which.
            dim: Size of the last axis.
            per: Axes before it, by name, along which the parameters differ: `{"heads": N}`.
        """
        self.norm, self.dim, per = norm, dim, per or {}
        declared = {
            name: parameter(key, (*per.values(), *shape), (*per, *axes), constant(initial))
            for name, (shape, axes, initial) in norm.parameters(dim, axis="norm").items()
        }
        self.scale, self.bias = declared.get("scale"), declared.get("bias")

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., dim] -> [..., dim]` in the dtype of `x`."""
        assert_axes(x=(x, f"... {self.dim}"))
        return self.norm(x, value_of(self.scale), value_of(self.bias))


class JointNorm(NormLayer):
    """Normalises all heads of a token as one vector, `[..., N, H]` (OLMo 2)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., N, H] -> [..., N, H]`; N H is the layer's `dim`."""
        return super().__call__(x.reshape(*x.shape[:-2], -1)).reshape(x.shape)


def optional_norm(key: jax.Array, norm: Norm | None, dim: int) -> NormLayer | None:
    """The layer of a norm that a config may leave out."""
    return None if norm is None else NormLayer(key, norm, dim)
