"""How a module declares a parameter: an initial value and the logical name of every axis."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.linear import Kernel, Transposed

Initializer = Callable[[jax.Array, tuple[int, ...]], jax.Array]


def normal(std: float) -> Initializer:
    """Draws from a normal distribution with standard deviation `std`."""
    return lambda key, shape: std * jax.random.normal(key, shape, jnp.float32)


def constant(value: float) -> Initializer:
    """Fills with `value`."""
    return lambda _, shape: jnp.full(shape, value, jnp.float32)


def parameter(
    key: jax.Array,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    initializer: Initializer,
    *,
    contract: int = 0,
    learns: bool = True,
) -> nnx.Param:
    """A float32 parameter whose `axes` metadata names each dimension (`distributed.sharding`).

    `contract` is the number of input axes of a kernel, which come first; 0: it is no kernel.
    Training leaves a parameter that does not learn as it is.
    """
    if len(shape) != len(axes):
        raise ValueError(f"a parameter of shape {shape} needs {len(shape)} axis names, got {axes}")
    return nnx.Param(initializer(key, shape), axes=axes, contract=contract, learns=learns)


def value_of(variable: nnx.Param | None) -> jax.Array | None:
    """The array of a parameter that a module may not have."""
    return None if variable is None else variable[...]


def kernel_of(variable: nnx.Param) -> Kernel:
    """The kernel that a parameter holds, however it lies there."""
    outputs = variable.get_metadata().get("outputs")
    return variable[...] if outputs is None else Transposed(variable[...], outputs)
