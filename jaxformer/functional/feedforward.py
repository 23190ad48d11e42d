"""The position-wise feed-forward network, plain and gated, and its activations."""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from jaxformer.checks import check_argument, check_types
from jaxformer.errors import ArgumentError, ConfigError, did_you_mean
from jaxformer.functional.activations import saveable, tap
from jaxformer.functional.arrays import assert_axes, assert_floating
from jaxformer.functional.linear import Kernel, as_array, linear
from jaxformer.functional.norms import ParameterTable

Elementwise = Callable[[jax.Array], jax.Array]
ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"]
"""The activation names in configurations."""


@dataclass(frozen=True)
class Activation(abc.ABC):
    """Base class of user-defined activations, which replace a name."""

    def __post_init__(self):
        check_types(self)

    def parameters(self, dim: int, axis: str = "mlp") -> ParameterTable:
        """Returns the parameters over an axis of size `dim` with logical name `axis`; none by
        default.
        """
        del dim, axis
        return {}

    @abc.abstractmethod
    def __call__(self, x: jax.Array, **parameters: jax.Array) -> jax.Array:
        """Maps each element.

        Args:
            x: `[..., D]`; float32 in the feed-forward layer.
            **parameters: The parameters that `parameters` declares, by name.

        Returns:
            `[..., D]` in the dtype of `x`.
        """


def gelu(x: jax.Array) -> jax.Array:
    r"""The exact Gaussian error linear unit.

    .. math:: y = \frac{x}{2} \left(1 + \mathrm{erf} \frac{x}{\sqrt 2}\right)

    `jax.nn.gelu` computes the parentheses with erfc, which is more accurate for values below 1e-6
    but takes twice as long on a CPU.

    Args:
        x: Any shape.

    Returns:
        The shape and dtype of `x`.

    References:
        Hendrycks and Gimpel, Gaussian Error Linear Units (https://arxiv.org/abs/1606.08415).
    """
    assert_floating(x=x)
    return 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def quick_gelu(x: jax.Array) -> jax.Array:
    r"""The sigmoid approximation of GELU that CLIP was trained with.

    .. math:: y = x \, \sigma(1.702 \, x)

    Args:
        x: Any shape.

    Returns:
        The shape and dtype of `x`.

    References:
        Hendrycks and Gimpel, Gaussian Error Linear Units (https://arxiv.org/abs/1606.08415).
    """
    assert_floating(x=x)
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Elementwise] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "silu": jax.nn.silu,
    "quick_gelu": quick_gelu,
    "tanh": jnp.tanh,
}
"""The activations by name: `gelu` is the exact one, `gelu_tanh` its tanh approximation."""


def activation(name: str) -> Elementwise:
    """Returns the activation with a name.

    Args:
        name: A key of `ACTIVATIONS`.

    Returns:
        An elementwise function.

    Raises:
        ConfigError: The activation is unknown; the message suggests a similar name.
    """
    if isinstance(name, str) and name in ACTIVATIONS:
        return ACTIVATIONS[name]
    hint = did_you_mean(name, ACTIVATIONS)
    raise ConfigError(f"activation = {name!r}: must be one of {', '.join(ACTIVATIONS)}{hint}")


def feed_forward(
    x: jax.Array,
    up: Kernel,
    down: Kernel,
    *,
    activation: Elementwise,
    gate: Kernel | None = None,
    up_bias: jax.Array | None = None,
    gate_bias: jax.Array | None = None,
    down_bias: jax.Array | None = None,
) -> jax.Array:
    r"""Position-wise feed-forward layer: two linear maps with an activation, or three with a gate.

    .. math::
      y = a(x W_{up} + b_{up}) \, W_{down} + b_{down}
      \qquad
      y = \left(a(x W_{gate} + b_{gate}) \odot (x W_{up} + b_{up})\right) W_{down} + b_{down}

    With a gate, `relu`, `gelu` and `silu` give ReGLU, GeGLU and SwiGLU. The activation and the
    product with the gate are computed in float32 and rounded once.

    Args:
        x: `[..., D]`.
        up: `[D, F]`; each kernel may have any form of `functional.linear`.
        down: `[F, D]`.
        activation: The elementwise activation a.
        gate: `[D, F]`, or None for the form without a gate.
        up_bias: `[F]` or None.
        gate_bias: `[F]` or None; only with a gate.
        down_bias: `[D]` or None.

    Returns:
        `[..., D]` in the dtype of `x`.

    Raises:
        AssertionError: Shapes do not fit together, or an array is not floating-point.
        ArgumentError: A gate's bias is given without a gate, or the activation is not a function.

    References:
        Vaswani et al., Attention Is All You Need (https://arxiv.org/abs/1706.03762);
        Shazeer, GLU Variants Improve Transformer (https://arxiv.org/abs/2002.05202).
    """
    wanted = 'a function of an array, such as activation("silu")'
    check_argument("activation", activation, callable(activation), wanted)
    kernels = {"up": (up, "D F"), "down": (down, "F D"), "gate": (gate, "D F")}
    biases = {
        "up_bias": (up_bias, "F"),
        "gate_bias": (gate_bias, "F"),
        "down_bias": (down_bias, "D"),
    }
    given = {
        name: (as_array(array), axes)
        for name, (array, axes) in (kernels | biases).items()
        if array is not None or name in ("up", "down")
    }
    assert_axes(x=(x, "... D"), **given)
    assert_floating(x=x, **{name: array for name, (array, _) in given.items()})
    x = saveable("mlp_input", x)

    def hidden_units(kernel, bias):
        return saveable("mlp_hidden", linear(x, kernel, bias))

    if gate is None:
        if gate_bias is not None:
            raise ArgumentError("gate_bias is given, but there is no gate: pass both or neither")
        hidden = activated(activation, tap("hook_pre", hidden_units(up, up_bias)))
    else:
        gated = tap("hook_pre", hidden_units(gate, gate_bias))
        hidden = activated(activation, gated, tap("hook_pre_linear", hidden_units(up, up_bias)))
    return saveable("mlp_output", linear(tap("hook_post", hidden), down, down_bias))


def activated(activation: Callable, x: jax.Array, factor: jax.Array | None = None) -> jax.Array:
    """Returns `activation(x) * factor`, or `activation(x, factor)` if the activation is `joint`."""
    # It is computed in float32, and recomputed in the backward pass.

    def rounded_once(x, factor):
        wide = jnp.promote_types(x.dtype, jnp.float32)
        if factor is None:
            y = activation(x.astype(wide))
        elif getattr(activation, "joint", False):
            y = activation(x.astype(wide), factor.astype(wide))
        else:
            y = activation(x.astype(wide)) * factor.astype(wide)
        return y.astype(x.dtype)

    return jax.checkpoint(rounded_once)(x, factor)
