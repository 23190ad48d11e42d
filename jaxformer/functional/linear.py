"""Matrix products in the compute dtype that accumulate in float32, forward and backward."""

import math
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from jaxformer.checks import at_least
from jaxformer.errors import check_argument
from jaxformer.functional.assertions import assert_axes, assert_floating, static
from jaxformer.functional.placement import mesh_axes, place, platform, spec_of, without

# A checkpoint policy does not see the products themselves: they have a rule of their own.
PRODUCT = "product"
"""The name of the result of `linear` for checkpoint policies."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transposed:
    """A kernel on one device, as a matrix with the contracted axis last.

    XLA's CPU backend reads it so two to three times as fast for few rows, if neither operand of
    the product has more axes.
    """

    matrix: jax.Array
    """`[F, D]`: all outputs, all that is contracted."""
    outputs: tuple[int, ...] = field(metadata={"static": True})
    """The sizes of the axes of the outputs."""


Kernel = jax.Array | Transposed


def linear(
    x: jax.Array,
    kernel: Kernel,
    bias: jax.Array | None = None,
    *,
    contract: int = 1,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    r"""A linear map over the last axes of `x`.

    .. math:: y_{b f} = \sum_d x_{b d} W_{d f} + \beta_f

    where `d` and `f` may each stand for several axes. The kernel (usually a float32 master weight)
    is cast to the dtype of `x`; products accumulate in float32. The backward pass rounds the
    cotangent to the dtype of `x` first, so all three products run at the compute dtype's speed,
    and the kernel's gradient leaves its float32 accumulator unrounded.

    In an explicit mesh, the mesh axes over which `x` is batched are gathered from the kernel before
    the product (fully sharded data parallelism) and its gradient is scattered back.

    Args:
        x: `[..., *contracted]`.
        kernel: `[*contracted, *outputs]`, or that `Transposed`.
        bias: `[*outputs]` or None.
        contract: The number of contracted axes.
        dtype: Of the result; None: that of `x`. Logits want float32, unrounded.

    Returns:
        `[..., *outputs]`.

    Raises:
        AssertionError: Shapes do not fit together, or an array holds no floating-point numbers.
        ArgumentError: `contract` or `dtype` cannot be.
    """
    contract = static("contract", contract, at_least(1))
    assert_axes(x=(x, " ".join(["...", *["_"] * contract])))
    assert_floating(x=x)
    dtype = jnp.dtype(x.dtype if dtype is None else dtype)
    check_argument("dtype", dtype, jnp.issubdtype(dtype, jnp.floating), "one of floating point")
    contracted = x.shape[x.ndim - contract :]
    if isinstance(kernel, Transposed):
        assert_axes(kernel=(kernel.matrix, f"_ {math.prod(contracted)}"))
        outputs, y = kernel.outputs, _contract_transposed(x, kernel, contract).astype(dtype)
    else:
        free = getattr(kernel, "ndim", 0) - contract
        assert_axes(kernel=(kernel, " ".join([*map(str, contracted), *["_"] * free])))
        assert_floating(kernel=kernel)
        outputs, y = kernel.shape[contract:], _contract(x, kernel, contract, dtype)
    y = checkpoint_name(y, PRODUCT)
    if bias is None:
        return y
    assert_axes(bias=(bias, " ".join(map(str, outputs))))
    assert_floating(bias=bias)
    # In float32, for then the bias's gradient is summed in it too; XLA's CPU backend sums bfloat16
    # twenty times as slowly.
    wide = jnp.promote_types(y.dtype, jnp.float32)
    bias = gathered(bias.astype(wide), x, contract)
    return (y.astype(wide) + jnp.expand_dims(bias, tuple(range(x.ndim - contract)))).astype(y.dtype)


def dot(lhs: jax.Array, rhs: jax.Array, dimensions, spec: PartitionSpec | None = None) -> jax.Array:
    """`jax.lax.dot_general` accumulated, and returned, in at least float32."""
    accumulator = jnp.promote_types(jnp.result_type(lhs, rhs), jnp.float32)
    return jax.lax.dot_general(
        lhs, rhs, dimensions, preferred_element_type=accumulator, out_sharding=spec
    )


def gathered(parameter: jax.Array, x: jax.Array, contract: int = 0) -> jax.Array:
    """Gathers a parameter along every mesh axis that shards the batch of `x`.

    This is the all-gather of fully sharded data parallelism; its transpose is a reduce-scatter of
    the gradient.

    Args:
        parameter: Any shape.
        x: The activation that will meet it.
        contract: How many of the last axes of `x` are features rather than batch.

    Returns:
        The same values, resharded.
    """
    if (spec := spec_of(parameter)) is None:
        return parameter
    batched = {axis for entry in spec_of(x)[: x.ndim - contract] for axis in mesh_axes(entry)}
    return place(parameter, PartitionSpec(*(without(entry, batched) for entry in spec)))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _contract(x, kernel, contract, dtype):
    kernel = gathered(kernel.astype(x.dtype), x, contract)
    spec = None
    if spec_of(x) is not None:
        spec = PartitionSpec(*spec_of(x)[: x.ndim - contract], *spec_of(kernel)[contract:])
    last = tuple(range(x.ndim - contract, x.ndim))
    dimensions = (last, tuple(range(contract))), ((), ())
    return _dot_rows(x, kernel, dimensions, spec).astype(dtype)


def _contract_transposed(x, kernel, contract):
    batch = x.shape[: x.ndim - contract]
    rows, matrix = x.reshape(math.prod(batch), -1), kernel.matrix.astype(x.dtype)
    return _dot_rows(rows, matrix, (((1,), (1,)), ((), ()))).reshape(*batch, *kernel.outputs)


def _dot_rows(x, kernel, dimensions, spec=None):
    """Returns `dot`, computed on two copies of the row where `x` is a single bfloat16 row on a CPU.

    XLA's CPU backend multiplies two rows eight times as fast as one (decoding at batch size 1).
    """
    rows = x.shape[: x.ndim - len(dimensions[0][0])]
    if rows and math.prod(rows) == 1 and x.dtype == jnp.bfloat16 and platform() == "cpu":
        return dot(jnp.concatenate([x, x]), kernel, dimensions, spec)[:1]
    return dot(x, kernel, dimensions, spec)


def _contract_forward(x, kernel, contract, dtype):
    return _contract(x, kernel, contract, dtype), (x, kernel)


def _contract_backward(contract, dtype, residuals, cotangent):
    del dtype
    x, kernel = residuals
    cotangent = cotangent.astype(x.dtype)
    batch = tuple(range(x.ndim - contract))
    outputs = tuple(range(len(batch), cotangent.ndim))
    whole = gathered(kernel.astype(x.dtype), x, contract)
    dx = dot(
        cotangent, whole, ((outputs, tuple(range(contract, kernel.ndim))), ((), ())), spec_of(x)
    )
    dkernel = dot(x, cotangent, ((batch, batch), ((), ())), spec_of(kernel))
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype)


_contract.defvjp(_contract_forward, _contract_backward)
