"""Matrix products whose operands have eight bits, forward and backward."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from jaxformer.functional.arrays import gathered, spec_of
from jaxformer.functional.derivatives import differentiable, product_rule
from jaxformer.functional.linear import KernelForm, output_sizes

FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2
"""The formats of activations and kernels, and of cotangents: more precision, and more range."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rounded(KernelForm):
    r"""A kernel that learns in float32, and whose products have operands in float8.

    .. math:: y = s_x s_W \, \sum_d r(x / s_x)_{b d} \, r(W / s_W)_{d f}, \qquad
              s_x = \max |x| / 448

    where r rounds to e4m3, whose largest number is 448. The two products of the backward pass round
    the cotangent to e5m2 in the same way. A scale is computed from the current values of the whole
    tensor, so no state is kept between steps; derivatives treat it, and the rounding, as constants.
    Sums are float32.

    References:
        Micikevicius et al., FP8 Formats for Deep Learning (https://arxiv.org/abs/2209.05433).
    """

    kernel: jax.Array
    """W, `[*contracted, *outputs]`."""

    @property
    def like(self):
        return self.kernel

    def dense(self, contracted):
        return self.kernel

    def output_sizes(self, contracted):
        return output_sizes(self.kernel, contracted)

    def product(self, x, contract, dtype):
        return _product(x, self.kernel, contract=contract, dtype=dtype)


def rounded(x: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    """Returns `x / s` in a float8 format, and s, the float32 scale of the whole array."""
    largest = jnp.max(jnp.abs(x)).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest, 1.0) / float(jnp.finfo(dtype).max)
    return (x.astype(jnp.float32) / scale).astype(dtype), scale


def _product_value(x, kernel, *, contract, dtype):
    return _linearize(None, x, kernel, contract=contract, dtype=dtype)[0]


def _linearize(moves, x, kernel, *, contract, dtype):
    del moves
    (x8, x_scale), (kernel8, kernel_scale) = rounded(x, FORWARD), rounded(kernel, FORWARD)
    whole = gathered(kernel8, x8, contract)
    spec = None
    if spec_of(x) is not None:
        spec = PartitionSpec(*spec_of(x)[: x.ndim - contract], *spec_of(whole)[contract:])
    last = tuple(range(x.ndim - contract, x.ndim))
    y = _dot(x8, whole, (last, tuple(range(contract))), spec) * (x_scale * kernel_scale)
    # The values that the operands were rounded from are not kept.
    like = jnp.zeros((0,), x.dtype), jnp.zeros((0,), kernel.dtype)
    return y.astype(dtype), (x8, x_scale, kernel8, kernel_scale, like)


def _push(residuals, tangents, *, contract, dtype):
    x8, x_scale, kernel8, kernel_scale, like = residuals
    x = (x8.astype(jnp.float32) * x_scale).astype(like[0].dtype)
    kernel = (kernel8.astype(jnp.float32) * kernel_scale).astype(like[1].dtype)
    return product_rule(partial(_product, contract=contract, dtype=dtype), (x, kernel), tangents)


def _pull(residuals, cotangent, *, contract, dtype):
    del dtype
    x8, x_scale, kernel8, kernel_scale, like = residuals
    cotangent8, scale = rounded(cotangent, BACKWARD)
    batch = tuple(range(x8.ndim - contract))
    outputs = tuple(range(len(batch), cotangent.ndim))
    whole = gathered(kernel8, x8, contract)
    contracted = outputs, tuple(range(contract, kernel8.ndim))
    dx = _dot(cotangent8, whole, contracted, spec_of(x8)) * (scale * kernel_scale)
    dkernel = _dot(x8, cotangent8, (batch, batch), spec_of(kernel8)) * (x_scale * scale)
    return dx.astype(like[0].dtype), dkernel.astype(like[1].dtype)


def _dot(lhs, rhs, contracted, spec):
    return jax.lax.dot_general(
        lhs, rhs, (contracted, ((), ())), preferred_element_type=jnp.float32, out_sharding=spec
    )


_product = differentiable(_product_value, _linearize, _push, _pull)
