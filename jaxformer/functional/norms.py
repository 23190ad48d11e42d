"""Layer and root-mean-square normalization over the last axis, as functions and components."""

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, SWITCH, check_fields, check_types
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    check_numbers,
    gathered,
    static,
)

# With `jax.checkpoint` the backward pass recomputes the float32 intermediates from `x`; otherwise
# two float32 copies of the activation would be stored per norm.


def layer_norm(
    x: jax.Array, scale: jax.Array | None, bias: jax.Array | None, *, eps: float
) -> jax.Array:
    r"""Layer normalization: normalizes the last axis to mean 0 and variance 1, then applies an
    affine map.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, \gamma + \beta

    All arithmetic is in float32 with a single rounding.

    Args:
        x: `[..., D]`.
        scale: γ, `[D]`, or more of the last axes of `x`, or None for 1.
        bias: β, of the same shape, or None for 0.
        eps: ε, added to the variance.

    Returns:
        `[..., D]` in the dtype of `x`.

    Raises:
        AssertionError: Shapes do not fit together, or an array is not floating-point.
        ArgumentError: `eps` is negative or not finite.

    References:
        Ba et al., Layer Normalization (https://arxiv.org/abs/1607.06450).
    """
    _assert_normalisable(x, eps, scale=scale, bias=bias)

    @jax.checkpoint
    def normalise(x, scale, bias):
        wide = _wide(x)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + eps)
        if scale is not None:
            y *= scale
        if bias is not None:
            y += bias
        return y.astype(x.dtype)

    return normalise(x, _aligned(scale, x), _aligned(bias, x))


def rms_norm(x: jax.Array, scale: jax.Array | None, *, eps: float, unit_offset: bool) -> jax.Array:
    r"""RMS normalization: scales the last axis to root mean square 1, then by a learned weight.

    .. math:: y = \frac{x}{\sqrt{\frac{1}{D} \sum_d x_d^2 + \epsilon}} \, \gamma

    All arithmetic is in float32 with a single rounding, after the multiplication by γ.

    Args:
        x: `[..., D]`.
        scale: γ, or γ - 1 with `unit_offset`; `[D]`, or more of the last axes of `x`, or None for
            γ = 1.
        eps: ε, added to the mean square.
        unit_offset: Whether `scale` is stored as its difference from 1, as in Gemma.

    Returns:
        `[..., D]` in the dtype of `x`.

    Raises:
        AssertionError: Shapes do not fit together, or an array is not floating-point.
        ArgumentError: `eps` is negative or not finite.

    References:
        Zhang and Sennrich, Root Mean Square Layer Normalization (https://arxiv.org/abs/1910.07467).
    """
    _assert_normalisable(x, eps, scale=scale)
    unit_offset = static("unit_offset", unit_offset, SWITCH)

    @jax.checkpoint
    def normalise(x, scale):
        wide = _wide(x)
        y = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
        if scale is not None:
            y *= 1 + scale if unit_offset else scale
        return y.astype(x.dtype)

    return normalise(x, _aligned(scale, x))


def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns `x` `[..., D]` with each channel times a learned factor `[D]` (layer scale).

    References:
        Touvron et al., Going deeper with Image Transformers (https://arxiv.org/abs/2103.17239).
    """
    assert_axes(x=(x, "... D"), scale=(scale, "D"))
    assert_floating(x=x, scale=scale)
    return (_wide(x) * _aligned(scale, x)).astype(x.dtype)


def _assert_normalisable(x, eps, **weights):
    assert_axes(x=(x, "... D"))
    assert_floating(x=x)
    check_numbers(eps=(eps, NOT_NEGATIVE))
    for name, weight in weights.items():
        if weight is not None:
            first = x.ndim - min(max(np.ndim(weight), 1), x.ndim)
            assert_axes(**{name: (weight, " ".join(map(str, x.shape[first:])))})
            assert_floating(**{name: weight})


def _wide(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _aligned(weight, x):
    """`weight` in float32 against the last axes of `x`."""
    if weight is None:
        return None
    axes = weight.ndim
    weight = gathered(weight.astype(jnp.promote_types(x.dtype, jnp.float32)), x, axes)
    return jnp.expand_dims(weight, tuple(range(x.ndim - axes)))


ParameterTable = dict[str, tuple[tuple[int, ...], tuple[str, ...], float]]
"""The shape, logical axes and initial value of each parameter, by name."""


@dataclass(frozen=True)
class Norm(abc.ABC):
    """Base class of normalizations over the last axis."""

    eps: float
    """Added to the variance or mean square before the root."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, eps=POSITIVE)

    @abc.abstractmethod
    def parameters(self, dim: int, axis: str = "embed") -> ParameterTable:
        """Returns the parameters of a norm over an axis of size `dim` with logical name `axis`."""

    @abc.abstractmethod
    def __call__(self, x: jax.Array, **parameters: jax.Array) -> jax.Array:
        """Normalizes the last axis.

        Args:
            x: `[..., D]`.
            **parameters: The parameters that `parameters` declares, in float32, by name.

        Returns:
            `[..., D]` in the dtype of `x`.
        """

    def normalized(self, x: jax.Array, **parameters: jax.Array) -> jax.Array:
        """Normalizes `x` `[..., D]` without applying scale and bias (`affine`)."""
        neutral = {"scale": jnp.ones_like, "bias": jnp.zeros_like}
        given = {
            name: neutral[name](value) if name in neutral else value
            for name, value in parameters.items()
        }
        return self(x, **given)

    def affine(
        self, x: jax.Array, scale: jax.Array | None = None, bias: jax.Array | None = None
    ) -> jax.Array:
        """Applies only the learned part, `x * scale + bias`, to a normalized `x` `[..., D]`."""
        y = _wide(x)
        y = y if scale is None else y * _aligned(scale, x)
        y = y if bias is None else y + _aligned(bias, x)
        return y.astype(x.dtype)


@dataclass(frozen=True)
class LayerNorm(Norm):
    """`layer_norm`, with or without a bias and a scale."""

    eps: float = 1e-5
    """Added to the variance before the root."""
    bias: bool = True
    """Whether to add a learned bias."""
    scale: bool = True
    """Whether to multiply by a learned scale."""

    def parameters(self, dim: int, axis: str = "embed") -> ParameterTable:
        """Returns `scale` and `bias`, if in use."""
        scale = {"scale": ((dim,), (axis,), 1.0)} if self.scale else {}
        return scale | ({"bias": ((dim,), (axis,), 0.0)} if self.bias else {})

    def __call__(
        self, x: jax.Array, scale: jax.Array | None = None, bias: jax.Array | None = None
    ) -> jax.Array:
        """Applies `layer_norm` to `x` `[..., D]`."""
        return layer_norm(x, scale, bias, eps=self.eps)


@dataclass(frozen=True)
class RMSNorm(Norm):
    """`rms_norm`, with the weight stored directly or as its difference from 1."""

    eps: float = 1e-6
    """Added to the mean square before the root."""
    unit_offset: bool = False
    """Multiply the result by 1 + scale (Gemma) instead of by scale (Llama)."""

    def parameters(self, dim: int, axis: str = "embed") -> ParameterTable:
        """Returns `scale`, initialized to multiply by 1."""
        return {"scale": ((dim,), (axis,), 0.0 if self.unit_offset else 1.0)}

    def __call__(
        self, x: jax.Array, scale: jax.Array | None = None, bias: jax.Array | None = None
    ) -> jax.Array:
        """Applies `rms_norm`, which has no bias, to `x` `[..., D]`."""
        if bias is not None:
            raise ArgumentError("bias is given, but RMSNorm has no bias: use LayerNorm")
        return rms_norm(x, scale, eps=self.eps, unit_offset=self.unit_offset)

    def normalized(self, x: jax.Array, **parameters: jax.Array) -> jax.Array:
        """Divides `x` `[..., D]` by its root mean square."""
        del parameters
        return rms_norm(x, None, eps=self.eps, unit_offset=self.unit_offset)

    def affine(
        self, x: jax.Array, scale: jax.Array | None = None, bias: jax.Array | None = None
    ) -> jax.Array:
        """Multiplies `x` `[..., D]` by the weight."""
        return super().affine(x, scale + 1 if self.unit_offset else scale, bias)


@dataclass(frozen=True)
class NoNorm(Norm):
    """The identity, for blocks without a norm."""

    eps: float = 1.0
    """Unused."""

    def parameters(self, dim: int, axis: str = "embed") -> ParameterTable:
        """Returns no parameters."""
        del dim, axis
        return {}

    def __call__(self, x: jax.Array, **parameters: jax.Array) -> jax.Array:
        """Returns `x` unchanged."""
        del parameters
        return x
