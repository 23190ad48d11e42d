"""Convolutions over time: windows for a linear map, and grouped kernels with a weight norm."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxformer.checks import at_least, check_argument
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    assert_floating,
    gathered,
    per_device,
    static,
)
from jaxformer.functional.derivatives import differentiable, product_rule


def num_windows(length: int | jax.Array, size: int, stride: int) -> int | jax.Array:
    """Returns how many windows a row has; 0 or less if it is shorter than one."""
    return (length - size) // stride + 1


def windows(x: jax.Array, size: int, stride: int) -> jax.Array:
    r"""Returns the windows `[B, T, P, C]` of rows `[B, L, C]`: T of `num_windows`, P = `size`.

    .. math:: y_{b,\; t,\; p,\; c} = x_{b,\; t s + p,\; c}

    with the stride s. A linear map of windows is a convolution without padding.
    """
    assert_axes(x=(x, "B L C"))
    size = static("size", size, at_least(1))
    stride = static("stride", stride, at_least(1))
    count = num_windows(x.shape[1], size, stride)
    check_argument("size", size, count >= 1, f"at most the length of the rows, {x.shape[1]}")
    last = stride * (count - 1) + 1
    return jnp.stack([x[:, tap : tap + last : stride] for tap in range(size)], axis=2)


def grouped_convolution(x: jax.Array, kernel: jax.Array, *, groups: int) -> jax.Array:
    r"""A convolution whose output is as long as its input, between the channels of each group.

    .. math:: y_{b,\; t,\; g,\; o} = \sum_{p c} x_{b,\; t + p - \lfloor P / 2 \rfloor,\; g,\; c}
              W_{p,\; c,\; g,\; o}

    with zeros before and after the row. The gradient of the kernel is a product for each tap, since
    XLA's CPU backend has no fast convolution with a kernel as long as the row.

    Args:
        x: `[B, T, D]`.
        kernel: `[P, D / G, D]`, cast to the dtype of `x`.
        groups: G, a divisor of D.

    Returns:
        `[B, T, D]`.
    """
    sizes = assert_axes(x=(x, "B T D"))
    assert_floating(x=x, kernel=kernel)
    dim = sizes["D"]
    groups = static("groups", groups, at_least(1))
    check_argument("groups", groups, dim % groups == 0, f"a divisor of the {dim} channels")
    assert_axes(kernel=(kernel, f"P {dim // groups} {dim}"))
    kernel = gathered(kernel.astype(x.dtype), x, 1)
    return per_device(lambda x, kernel: _grouped(x, kernel, groups=groups), x, kernel)


def _convolved(x: jax.Array, kernel: jax.Array, groups: int) -> jax.Array:
    size = kernel.shape[0]
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (1,),
        [(size // 2, (size - 1) // 2)],
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=groups,
        preferred_element_type=x.dtype,
    )


def _linearized(moves, x, kernel, *, groups):
    del moves
    return _convolved(x, kernel, groups), (x, kernel)


def _push(residuals, tangents, *, groups):
    return product_rule(partial(_convolved, groups=groups), residuals, tangents)


def _pull(residuals, cotangent, *, groups):
    x, kernel = residuals
    size, _, dim = kernel.shape
    rows, length = x.shape[:2]
    (dx,) = jax.linear_transpose(lambda x: _convolved(x, kernel, groups), x)(cotangent)
    padded = jnp.pad(x, ((0, 0), (size // 2, (size - 1) // 2), (0, 0)))
    apart = (rows, -1, groups, dim // groups)
    padded, cotangent = padded.reshape(apart), cotangent.reshape(apart)

    def of_tap(tap):
        shifted = jax.lax.dynamic_slice_in_dim(padded, tap, length, axis=1)
        return jnp.einsum("btgc,btgo->cgo", shifted, cotangent, preferred_element_type=jnp.float32)

    dkernel = jax.lax.map(of_tap, jnp.arange(size))
    return dx, dkernel.reshape(kernel.shape).astype(kernel.dtype)


_grouped = differentiable(_convolved, _linearized, _push, _pull)


def weight_norm(direction: jax.Array, magnitude: jax.Array) -> jax.Array:
    r"""Returns a kernel by its direction v `[P, C, O]` and its length g `[P]` for each tap.

    .. math:: W_{p c o} = g_p \, v_{p c o} / \lVert v_p \rVert

    References:
        Salimans and Kingma, Weight Normalization (https://arxiv.org/abs/1602.07868).
    """
    assert_axes(direction=(direction, "P C O"), magnitude=(magnitude, "P"))
    assert_floating(direction=direction, magnitude=magnitude)
    length = jnp.sqrt(jnp.sum(jnp.square(direction), axis=(1, 2), keepdims=True))
    return direction * (magnitude[:, None, None] / length)


def channel_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, valid: jax.Array | None = None, *, eps: float
) -> jax.Array:
    r"""Normalizes each channel of each row over time to mean 0 and variance 1.

    .. math:: y_{b t c} = \frac{x_{b t c} - \mu_{b c}}{\sqrt{\sigma^2_{b c} + \epsilon}} \,
              \gamma_c + \beta_c

    This is PyTorch's `GroupNorm` with a group for each channel. All arithmetic is in float32.

    Args:
        x: `[B, T, C]`.
        scale: γ, `[C]`.
        bias: β, `[C]`.
        valid: bool `[B, T]`, the positions over which mean and variance are taken; None: all.
        eps: ε, added to the variance.

    Returns:
        `[B, T, C]` in the dtype of `x`.

    References:
        Wu and He, Group Normalization (https://arxiv.org/abs/1803.08494).
    """
    sizes = assert_axes(x=(x, "B T C"))
    assert_axes(sizes, scale=(scale, "C"), bias=(bias, "C"))
    assert_floating(x=x, scale=scale, bias=bias)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if valid is None:
        mean = jnp.mean(wide, axis=1, keepdims=True)
        variance = jnp.mean(jnp.square(wide - mean), axis=1, keepdims=True)
    else:
        assert_axes(sizes, valid=(valid, "B T"))
        assert_bool(valid=valid)
        weights = valid[..., None].astype(wide.dtype)
        count = jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1)
        mean = jnp.sum(wide * weights, axis=1, keepdims=True) / count
        variance = jnp.sum(jnp.square(wide - mean) * weights, axis=1, keepdims=True) / count
    scale, bias = (gathered(each.astype(wide.dtype), x, 1)[None, None] for each in (scale, bias))
    return ((wide - mean) * jax.lax.rsqrt(variance + eps) * scale + bias).astype(x.dtype)
