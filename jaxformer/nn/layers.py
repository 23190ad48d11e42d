"""Parameters, and simple layers: Linear, NormLayer and Embedding."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.errors import ConfigError
from jaxformer.functional.activations import is_wanted, scope, tap
from jaxformer.functional.arrays import assert_axes, assert_ids, check_result, on_tokens
from jaxformer.functional.derivatives import differentiable
from jaxformer.functional.feedforward import Activation, activation
from jaxformer.functional.linear import Kernel, Transposed, linear, lookup
from jaxformer.functional.norms import Norm, ParameterTable

Initializer = Callable[[jax.Array, tuple[int, ...]], jax.Array]

# Parameters -------------------------------------------------------------------------------------


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
    largest: float | None = None,
) -> nnx.Param:
    """Declares a float32 parameter with a logical name for every axis.

    Args:
        key: A PRNG key for the initial value.
        shape: The shape.
        axes: One name for each dimension; `distributed.sharding` maps them to mesh axes.
        initializer: Computes the initial value from the key and the shape.
        contract: The number of leading input axes if the parameter is a kernel; 0 if it is not.
        learns: False: training does not update the parameter.
        largest: The maximum, to which updates are clipped; None: no maximum.

    Returns:
        The parameter, with `axes`, `contract`, `learns` and `largest` as metadata.

    Raises:
        ValueError: There is not one name for each dimension.
    """
    if len(shape) != len(axes):
        raise ValueError(f"a parameter of shape {shape} needs {len(shape)} axis names, got {axes}")
    metadata = {"axes": axes, "contract": contract, "learns": learns, "largest": largest}
    return nnx.Param(initializer(key, shape), **metadata)


def num_layer_axes(axes: tuple[str, ...]) -> int:
    """The number of axes along which a parameter is stacked over layers: 1 or 0."""
    return int(axes[:1] == ("layers",))


def num_stacking_axes(axes: tuple[str, ...]) -> int:
    """The leading axes along which parameters are stacked: those of layers and of experts."""
    layers = num_layer_axes(axes)
    own = axes[layers:]
    return layers + (own[:1] == ("expert",))


def value_of(variable: nnx.Param | None) -> jax.Array | None:
    """The array of an optional parameter."""
    return None if variable is None else variable[...]


def declare(
    module: nnx.Module,
    key: jax.Array,
    part: Any,
    table: ParameterTable,
    per: Mapping[str, int] | None = None,
    *,
    takes: Sequence[str] = ("x",),
) -> tuple[str, ...]:
    """Declares the parameters of a part as attributes of a module, and returns their names.

    Args:
        module: The layer.
        key: A PRNG key for the initial values.
        part: The norm, activation or router, which is called with them by name.
        table: The result of its `parameters`.
        per: Preceding axes, by name, along which the parameters differ: `{"heads": N}`.
        takes: The names of its other arguments.

    Returns:
        The names.

    Raises:
        ConfigError: The part cannot be called with them, or a name is taken.
    """
    name, per = type(part).__name__, per or {}
    try:
        inspect.signature(part).bind(*takes, **table)
    except TypeError as error:
        given = ", ".join([*takes, *(f"{each}=" for each in table)])
        raise ConfigError(
            f"{name}.__call__: must take {given}, the parameters that {name}.parameters declares "
            f"({error})"
        ) from None
    for each, (shape, axes, initial) in table.items():
        if hasattr(module, each):
            raise ConfigError(f"{name}.parameters: {each!r} is taken; choose another name")
        shape, axes = (*per.values(), *shape), (*per, *axes)
        setattr(module, each, parameter(key, shape, axes, constant(initial)))
    return tuple(table)


def values_of(module: nnx.Module, names: Sequence[str]) -> dict[str, jax.Array]:
    """The arrays of a module's parameters, by their names."""
    return {name: getattr(module, name)[...] for name in names}


# Layers -----------------------------------------------------------------------------------------


class Linear(nnx.Module):
    """A linear map between named axes: `functional.linear` with its kernel and bias.

    `Linear(key, {"embed": D}, {"heads": N, "head_dim": H}, normal(0.02))` maps `[..., D]` to
    `[..., N, H]`. The kernel has separate axes.
    """

    def __init__(
        self,
        key: jax.Array,
        inputs: dict[str, int],
        outputs: dict[str, int],
        initializer: Initializer,
        *,
        bias: bool = False,
    ):
        """Declares the kernel `[*inputs, *outputs]` and, if requested, the bias `[*outputs]`."""
        axes = inputs | outputs
        self.inputs = tuple(inputs.values())
        self.contract = len(inputs)
        self.kernel = parameter(
            key, tuple(axes.values()), tuple(axes), initializer, contract=self.contract
        )
        shape = tuple(outputs.values())
        self.bias = parameter(key, shape, tuple(outputs), constant(0.0)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., *inputs] -> [..., *outputs]` in the dtype of `x`."""
        assert_axes(x=(x, " ".join(["...", *map(str, self.inputs)])))
        return linear(x, self.kernel.get_value(), value_of(self.bias), contract=self.contract)


class ExpertLinear(nnx.Module):
    """The kernels `[E, *inputs, *outputs]` of the same linear map of every expert, and biases."""

    def __init__(
        self,
        key: jax.Array,
        num: int,
        inputs: dict[str, int],
        outputs: dict[str, int],
        initializer: Initializer,
        *,
        bias: bool = False,
    ):
        """Declares the parameters."""
        axes = {"expert": num} | inputs | outputs
        self.kernel = parameter(key, tuple(axes.values()), tuple(axes), initializer, contract=1)
        own = {"expert": num} | outputs
        shape, names = tuple(own.values()), tuple(own)
        self.bias = parameter(key, shape, names, constant(0.0)) if bias else None


class NormLayer(nnx.Module):
    """Normalises the last axis with a norm (LayerNorm, RMSNorm) and its parameters."""

    def __init__(self, key: jax.Array, norm: Norm, dim: int, per: Mapping[str, int] | None = None):
        """Declares the parameters that the norm has.

        Args:
            key: A PRNG key for the initial values.
            norm: The norm.
            dim: The size of the last axis.
            per: Preceding axes, by name, along which the parameters differ: `{"heads": N}`.
        """
        self.norm, self.dim = norm, dim
        self.names = declare(self, key, norm, norm.parameters(dim, axis="norm"), per)
        for name in {"scale", "bias"} - set(self.names):
            setattr(self, name, None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., dim] -> [..., dim]` in the dtype of `x`."""
        assert_axes(x=(x, f"... {self.dim}"))
        y = self.norm(x, **values_of(self, self.names))
        check_result(self.norm, y, x)
        return y

    def named(self, name: str, x: jax.Array) -> jax.Array:
        """The same, with names for `tap`: "hook_normalized", before scale and bias; "hook_out"."""
        with scope(name):
            y = self(x)
            if is_wanted("hook_normalized"):
                normalized = self.norm.normalized(x, **values_of(self, self.names))
                replaced = tap("hook_normalized", normalized)
                if replaced is not normalized:
                    y = self.norm.affine(replaced, value_of(self.scale), value_of(self.bias))
            return tap("hook_out", y)


class ActivationLayer(nnx.Module):
    """An activation, named or user-defined, with its parameters."""

    def __init__(self, key: jax.Array, kind: str | Activation, dim: int, axis: str = "mlp"):
        """Declares the parameters of an activation over an axis of size `dim`."""
        self.kind, own = kind, isinstance(kind, Activation)
        self.names = declare(self, key, kind, kind.parameters(dim, axis)) if own else ()

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., dim] -> [..., dim]` in the dtype of `x`."""
        if not isinstance(self.kind, Activation):
            return activation(self.kind)(x)
        y = self.kind(x, **values_of(self, self.names))
        check_result(self.kind, y, x)
        return y

    def __str__(self) -> str:
        return type(self.kind).__name__ if isinstance(self.kind, Activation) else self.kind


class JointNorm(NormLayer):
    """Normalises all heads of a token as one vector, `[..., N, H]` (OLMo 2)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., N, H] -> [..., N, H]`; the layer's `dim` is N H."""
        return super().__call__(x.reshape(*x.shape[:-2], -1)).reshape(x.shape)


def optional_norm(key: jax.Array, norm: Norm | None, dim: int) -> NormLayer | None:
    """The layer of an optional norm."""
    return None if norm is None else NormLayer(key, norm, dim)


def head_norm(
    key: jax.Array, norm: Norm | None, width: int, over: str, heads: Mapping[str, int]
) -> NormLayer | None:
    """The layer of an optional norm of heads: of each, with shared parameters or not, or of all."""
    if norm is None or over == "head":
        return optional_norm(key, norm, width)
    if over == "each_head":
        return NormLayer(key, norm, width, heads)
    return JointNorm(key, norm, math.prod(heads.values()) * width)


class Embedding(nnx.Module):
    """A table `[V, D]` that maps token ids to vectors and may be tied to the output head."""

    def __init__(
        self,
        key: jax.Array,
        vocab_size: int,
        dim: int,
        initializer: Initializer,
        padding_id: int | None = None,
    ):
        """Declares the table; lookups of `padding_id` have no gradient."""
        self.table = parameter(key, (vocab_size, dim), ("vocab", "vocab_embed"), initializer)
        self.vocab_size = vocab_size
        self.padding_id = padding_id
        self.reads_transposed = False

    def __call__(self, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Int `[B, T]` -> `[B, T, D]` in `dtype`."""
        table = self.table[...]
        assert_axes(ids=(ids, "B T"))
        assert_ids(table.shape[0], ids=ids)
        if table.dtype == dtype == jnp.bfloat16:
            # Without the barrier a CPU hoists a float32 copy of the whole table out of a loop.
            table, ids = jax.lax.optimization_barrier((table, ids))
        ids = on_tokens(ids)
        x_BTD = lookup(table.astype(dtype), ids)
        if self.padding_id is None:
            return x_BTD
        return jnp.where((ids == self.padding_id)[..., None], jax.lax.stop_gradient(x_BTD), x_BTD)

    def kernel(self) -> Kernel:
        """The table as the kernel `[D, V]` of a tied head; never a copy."""
        table = self.table[...]
        return Transposed(table, table.shape[:1]) if self.reads_transposed else _transpose(table)


# Without the barrier XLA's CPU backend folds the transpose into the product that computes the
# gradient, and it has no kernel for the bfloat16 x bfloat16 -> float32 product in that layout.
_transpose = differentiable(
    jnp.transpose,
    lambda _, table: (table.T, ()),
    lambda _, tangents: tangents[0].T,
    lambda _, gradient: (jax.lax.optimization_barrier(gradient).T,),
)
