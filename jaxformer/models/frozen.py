"""Low-precision storage of frozen parameters: shapes, arrays and kernels."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.functional.linear import Quantized, dequantized, quantized
from jaxformer.models.parameters import AbstractModel, Parameters, stack_path, without_part_prefix
from jaxformer.nn.layers import num_layer_axes, num_stacking_axes

SCALES = ".int8_scales"
"""The suffix of the name of an int8 kernel's scales."""


def frozen_shapes(
    base: AbstractModel, dtype: str, learning: Collection[str]
) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, tuple[str, ...]]]:
    """Returns the shapes and axes of a model's parameters with frozen matrices in another dtype.

    Norms and biases stay in float32, since they are small, and so do the parameters that are
    `learning`. With int8, kernels outside the heads and the experts are in int8, with scales as
    additional parameters, and other matrices in bfloat16.
    """
    shapes, axes = dict(base.shapes), dict(base.axes)
    if dtype == "float32":
        return shapes, axes
    for name, names in base.axes.items():
        own = len(names) - num_stacking_axes(names)
        if name in learning or own < 2 or name.endswith("bias"):
            continue
        predicts = without_part_prefix(name).startswith("heads.")
        grouped = num_stacking_axes(names) > num_layer_axes(names)
        in_int8 = dtype == "int8" and name in base.kernels and not (predicts or grouped)
        shapes[name] = base.shapes[name].update(dtype=jnp.int8 if in_int8 else jnp.bfloat16)
        if in_int8:
            first = num_layer_axes(names)
            left = [i for i in range(len(names)) if not first <= i < first + base.kernels[name]]
            axes[name + SCALES] = tuple(names[i] for i in left)
            shape = tuple(shapes[name].shape[i] for i in left)
            shapes[name + SCALES] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return shapes, axes


def stored(name: str, value: jax.Array, like: Mapping[str, Any]) -> Parameters:
    """Returns a parameter in the dtype of `like`, and its scales if that is int8, by name."""
    if name + SCALES not in like:
        return {name: value.astype(like[name].dtype)}
    kernel = quantized(value, value.ndim - len(like[name + SCALES].shape), _layers(name))
    return {name: kernel.values, name + SCALES: kernel.scales}


def module_kernel(name: str, parameters: Parameters) -> jax.Array | Quantized:
    """Returns a parameter as modules use it: an array, or an int8 kernel with its scales."""
    scales = parameters.get(name + SCALES)
    return parameters[name] if scales is None else Quantized(parameters[name], scales)


def restored(name: str, parameters: Parameters) -> jax.Array:
    """Returns a parameter as a floating-point array, converting int8 to float32."""
    kernel = module_kernel(name, parameters)
    if not isinstance(kernel, Quantized):
        return kernel
    return dequantized(kernel, kernel.values.ndim - kernel.scales.ndim, _layers(name))


def _layers(name: str) -> int:
    return int(stack_path(name) is not None)
