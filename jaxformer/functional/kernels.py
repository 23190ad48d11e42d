"""The forms of a kernel: an array, transposed, in int8, part of a joined one, with factors."""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from jaxformer.functional.arrays import assert_axes, assert_floating

_LARGEST = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transposed:
    """A kernel on one device, as a matrix with the contracted axis last.

    XLA's CPU backend reads this layout two to three times as fast for few rows, if both operands
    are matrices.
    """

    matrix: jax.Array
    """`[F, D]`: outputs by contracted inputs."""
    outputs: tuple[int, ...] = field(metadata={"static": True})
    """The sizes of the output axes."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantized:
    r"""A kernel in int8 with a scale for each output; it has no gradient.

    .. math:: W_{d f} = s_f \, q_{d f}, \qquad s_f = \max_d |W_{d f}| / 127

    The product multiplies with the integers, which bfloat16 holds exactly, and then with the
    scales, so that no copy of the kernel in another dtype outlives it. Where the integers are
    `Transposed`, for a CPU, each row of x is rounded to int8 with a scale too.

    References:
        Dettmers et al., LLM.int8() (https://arxiv.org/abs/2208.07339), section 2.1.
    """

    values: jax.Array | Transposed
    """q, int8 `[*contracted, *outputs]`."""
    scales: jax.Array
    """s, float32 `[*outputs]`."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Part:
    """A range of the outputs of a joined kernel.

    `linear` multiplies with the whole kernel and slices the product. The compiler computes the
    products of one x with the parts of one kernel once, as a common subexpression.
    """

    joined: jax.Array | Transposed | Quantized
    """`[*contracted, F]`."""
    start: int = field(metadata={"static": True})
    """The first output."""
    outputs: tuple[int, ...] = field(metadata={"static": True})
    """The sizes of the output axes."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adapted:
    r"""A kernel and its low-rank factors, which `linear` never multiplies together.

    .. math:: y = x W + \lambda\, (\mathrm{dropout}(x) A) B

    References:
        Hu et al., LoRA (https://arxiv.org/abs/2106.09685).
    """

    base: jax.Array | Quantized
    """W, `[*contracted, *outputs]`."""
    a: jax.Array
    """A, `[*contracted, r]`."""
    b: jax.Array
    """B, `[r, *outputs]`."""
    key: jax.Array | None
    """The dropout key; None in evaluation."""
    scale: float = field(metadata={"static": True})
    """λ."""
    dropout: float = field(default=0.0, metadata={"static": True})
    """The dropout probability of the input of A."""


Kernel = jax.Array | Transposed | Quantized | Part | Adapted
ArrayLike = jax.Array | jax.ShapeDtypeStruct


def quantized(kernel: jax.Array, contract: int, layers: int = 0) -> Quantized:
    """Quantizes a kernel, or a stack of them.

    Args:
        kernel: `[*layers, *contracted, *outputs]`.
        contract: The number of contracted axes.
        layers: The number of axes that stack kernels.

    Returns:
        The integers in the shape of `kernel`, and the scales `[*layers, *outputs]`.
    """
    assert_floating(kernel=kernel)
    axes = tuple(range(layers, layers + contract))
    wide = jnp.asarray(kernel).astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=axes, keepdims=True)
    scales = jnp.where(largest > 0, largest, 1.0) / _LARGEST
    values = jnp.round(wide / scales).astype(jnp.int8)
    return Quantized(values, jnp.squeeze(scales, axes))


def dequantized(kernel: Quantized, contract: int, layers: int = 0) -> jax.Array:
    """Returns the float32 kernel of a quantized kernel, `[*layers, *contracted, *outputs]`."""
    axes = tuple(range(layers, layers + contract))
    return kernel.values.astype(jnp.float32) * jnp.expand_dims(kernel.scales, axes)


def as_array(kernel: Kernel) -> ArrayLike:
    """Returns an array or shape with a kernel's shape and dtype, `[*contracted, *outputs]`.

    Args:
        kernel: A kernel of any form; a `Transposed` one gives a matrix.

    Returns:
        The kernel itself if it is an array, otherwise its shape.
    """
    if isinstance(kernel, Transposed):
        return jax.ShapeDtypeStruct(kernel.matrix.shape[::-1], kernel.matrix.dtype)
    if isinstance(kernel, Quantized):
        return jax.ShapeDtypeStruct(as_array(kernel.values).shape, kernel.scales.dtype)
    if isinstance(kernel, Part):
        joined = as_array(kernel.joined)
        return jax.ShapeDtypeStruct((*joined.shape[:-1], *kernel.outputs), joined.dtype)
    return as_array(kernel.base) if isinstance(kernel, Adapted) else kernel


def check_kernel(kernel: Kernel, contracted: tuple[int, ...]) -> tuple[int, ...]:
    """Checks that a kernel contracts axes of the given sizes.

    Args:
        kernel: A kernel of any form.
        contracted: The sizes.

    Returns:
        The sizes of its output axes.

    Raises:
        AssertionError: The kernel contracts other sizes, or its arrays do not fit together.
    """
    if isinstance(kernel, Part):
        check_kernel(kernel.joined, contracted)
        return kernel.outputs
    matrix = kernel.values if isinstance(kernel, Quantized) else kernel
    array = as_array(kernel)
    flat = isinstance(matrix, Transposed)
    sizes = (math.prod(contracted),) if flat else contracted
    free = getattr(array, "ndim", 0) - len(sizes)
    assert_axes(kernel=(array, " ".join([*map(str, sizes), *["_"] * free])))
    assert_floating(kernel=array)
    if flat:
        return matrix.outputs
    outputs = tuple(array.shape[len(sizes) :])
    if isinstance(kernel, Adapted):
        inner, outer = (" ".join(map(str, side)) for side in (contracted, outputs))
        assert_axes(lora_a=(kernel.a, f"{inner} R"), lora_b=(kernel.b, f"R {outer}"))
        assert_floating(lora_a=kernel.a, lora_b=kernel.b)
    return outputs
