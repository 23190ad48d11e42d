"""Matrix products in the compute dtype that accumulate in float32, forward and backward.

A kernel is an array or has another form: transposed, quantized, part of a joined one, adapted, or
rounded to float8 (`functional.float8`).
"""
# long: the forms of a kernel and the product that reads each of them are one idea.

import abc
import math
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from jaxformer.checks import at_least, check_argument
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_ids,
    gathered,
    place,
    platform,
    spec_of,
    static,
)
from jaxformer.functional.derivatives import differentiable, product_rule
from jaxformer.functional.dropout import dropout

_LARGEST = 127
# A CPU multiplies up to this many rows faster with a transposed kernel as the left operand; with
# jaxlib 0.12, no integers.
_FEW_ROWS = 128
_FEW_INTEGERS = _FEW_ROWS if jax.__version_info__ < (0, 12) else 0
_PAGE, _LINE = 4096, 64

ArrayLike = jax.Array | jax.ShapeDtypeStruct


class KernelForm(abc.ABC):
    """A kernel `[*contracted, *outputs]` that is kept in another form than this array."""

    @property
    @abc.abstractmethod
    def like(self) -> ArrayLike:
        """An array or shape like the kernel, possibly a matrix."""

    @abc.abstractmethod
    def dense(self, contracted: tuple[int, ...]) -> jax.Array:
        """Returns the kernel as an array, without dropout."""

    @abc.abstractmethod
    def output_sizes(self, contracted: tuple[int, ...]) -> tuple[int, ...]:
        """Asserts that the kernel contracts axes of these sizes; returns those of its outputs."""

    @abc.abstractmethod
    def product(self, x: jax.Array, contract: int, dtype: DTypeLike) -> jax.Array:
        """Returns `x W`, where x is `[..., *contracted]`."""


Kernel = jax.Array | KernelForm


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transposed(KernelForm):
    """A kernel on one device, as a matrix with the contracted axis last.

    XLA's CPU backend reads this layout two to four times as fast for few rows, if both operands
    are matrices.
    """

    matrix: jax.Array
    """`[F, D + padding]`: outputs by contracted inputs."""
    outputs: tuple[int, ...] = field(metadata={"static": True})
    """The sizes of the output axes."""
    padding: int = field(default=0, metadata={"static": True})
    """The number of columns of zeros at the end."""

    @property
    def like(self):
        num_outputs, width = self.matrix.shape
        return jax.ShapeDtypeStruct((width - self.padding, num_outputs), self.matrix.dtype)

    def dense(self, contracted):
        return self.matrix.T[: math.prod(contracted)].reshape(*contracted, *self.outputs)

    def output_sizes(self, contracted):
        output_sizes(self.like, (math.prod(contracted),))
        return self.outputs

    def product(self, x, contract, dtype):
        batch = x.shape[: x.ndim - contract]
        rows = jnp.pad(x.reshape(math.prod(batch), -1), ((0, 0), (0, self.padding)))
        if self.matrix.dtype == jnp.int8 and platform() == "cpu":
            # XLA's CPU backend would first write the kernel in another dtype. Two operands in int8
            # it multiplies twice as fast as two in bfloat16.
            rounded = quantized(rows, 1, layers=1)
            y = _dot_matrix(rounded.values, self.matrix) * rounded.scales[:, None]
        elif rows.shape[0] == 1 and platform() == "gpu":
            # A single kernel reads the matrix row by row. XLA would split the product in parts,
            # which other kernels prepare and add up.
            wide = jnp.promote_types(x.dtype, jnp.float32)
            matrix = self.matrix.astype(x.dtype).astype(wide)
            y = jnp.sum(rows.astype(wide) * matrix, axis=1)[None]
        else:
            y = _dot_matrix(rows, self.matrix.astype(x.dtype))
        return y.reshape(*batch, *self.outputs).astype(dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quantized(KernelForm):
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

    @property
    def like(self):
        return jax.ShapeDtypeStruct(as_array(self.values).shape, self.scales.dtype)

    def dense(self, contracted):
        values = dense(self.values, contracted).astype(jnp.float32)
        return values * jnp.expand_dims(self.scales, tuple(range(len(contracted))))

    def output_sizes(self, contracted):
        return output_sizes(self.values, contracted)

    def product(self, x, contract, dtype):
        wide = jnp.promote_types(x.dtype, jnp.float32)
        y = _product(x, self.values, contract, wide)
        scales = gathered(self.scales, x, contract).astype(wide)
        return (y * jnp.expand_dims(scales, tuple(range(x.ndim - contract)))).astype(dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Part(KernelForm):
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

    @property
    def like(self):
        joined = as_array(self.joined)
        return jax.ShapeDtypeStruct((*joined.shape[:-1], *self.outputs), joined.dtype)

    def dense(self, contracted):
        return self._of(dense(self.joined, contracted))

    def output_sizes(self, contracted):
        output_sizes(self.joined, contracted)
        return self.outputs

    def product(self, x, contract, dtype):
        return self._of(_product(x, self.joined, contract, dtype))

    def _of(self, joined):
        part = joined[..., self.start : self.start + math.prod(self.outputs)]
        return part.reshape(*joined.shape[:-1], *self.outputs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adapted(KernelForm):
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

    @property
    def like(self):
        return as_array(self.base)

    def dense(self, contracted):
        return dense(self.base, contracted) + self.scale * jnp.tensordot(self.a, self.b, 1)

    def output_sizes(self, contracted):
        outputs = output_sizes(self.base, contracted)
        inner, outer = (" ".join(map(str, side)) for side in (contracted, outputs))
        assert_axes(lora_a=(self.a, f"{inner} R"), lora_b=(self.b, f"R {outer}"))
        assert_floating(lora_a=self.a, lora_b=self.b)
        return outputs

    def product(self, x, contract, dtype):
        wide = jnp.promote_types(x.dtype, jnp.float32)
        dropped = dropout(x, self.dropout, self.key)
        low = checkpoint_name(_contract(dropped, self.a, contract=contract, dtype=x.dtype), PRODUCT)
        added = self.scale * _contract(low, self.b, contract=1, dtype=wide)
        return (_product(x, self.base, contract, wide) + added).astype(dtype)


def transposed(kernel: jax.Array, outputs: tuple[int, ...]) -> Transposed:
    """Returns a kernel `[*layers, D, F]` transposed, where F is the product of `outputs`.

    On a CPU, rows that would displace each other in the cache get a cache line of zeros.
    """
    matrix = kernel.mT
    padding = _LINE // matrix.dtype.itemsize if platform() == "cpu" and _aliased(matrix) else 0
    widths = [(0, 0)] * (matrix.ndim - 1) + [(0, padding)]
    return Transposed(jnp.pad(matrix, widths), outputs, padding)


def _aliased(matrix: ArrayLike) -> bool:
    """Whether the rows of a narrow matrix displace each other in a CPU's cache."""
    # A product of bfloat16 or int8 reads several rows of its left operand at a time. The beginnings
    # of rows whose sizes are multiples of a page share a set of the cache.
    itemsize = matrix.dtype.itemsize
    return itemsize < 4 and matrix.shape[-1] * itemsize % _PAGE == 0


def quantized(kernel: jax.Array, contract: int, layers: int = 0) -> Quantized:
    """Quantizes kernels `[*layers, *contracted, *outputs]`, with scales `[*layers, *outputs]`."""
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
    """Returns an array or shape like a kernel, `[*contracted, *outputs]`, possibly a matrix."""
    return kernel.like if isinstance(kernel, KernelForm) else kernel


def dense(kernel: Kernel, contracted: tuple[int, ...]) -> jax.Array:
    """Returns a kernel of any form as an array `[*contracted, *outputs]`, without dropout."""
    return kernel.dense(contracted) if isinstance(kernel, KernelForm) else kernel


def output_sizes(kernel: Kernel | ArrayLike, contracted: tuple[int, ...]) -> tuple[int, ...]:
    """Asserts that a kernel contracts axes of the given sizes; returns those of its output axes."""
    if isinstance(kernel, KernelForm):
        return kernel.output_sizes(contracted)
    free = getattr(kernel, "ndim", 0) - len(contracted)
    assert_axes(kernel=(kernel, " ".join([*map(str, contracted), *["_"] * free])))
    return tuple(kernel.shape[len(contracted) :])


# Checkpoint policies cannot see the products themselves, which have custom derivative rules.
PRODUCT = "product"
"""The name of the result of `linear` for checkpoint policies."""


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
        kernel: `[*contracted, *outputs]`, or another form of it, see `functional.linear`.
        bias: `[*outputs]` or None.
        contract: The number of contracted axes.
        dtype: The dtype of the result; None uses the dtype of `x`. Use float32 for logits.

    Returns:
        `[..., *outputs]`.

    Raises:
        AssertionError: Shapes do not fit together, or an array holds no floating-point numbers.
        ArgumentError: `contract` or `dtype` is invalid.
    """
    contract = static("contract", contract, at_least(1))
    assert_axes(x=(x, " ".join(["...", *["_"] * contract])))
    assert_floating(x=x)
    dtype = jnp.dtype(x.dtype if dtype is None else dtype)
    check_argument("dtype", dtype, jnp.issubdtype(dtype, jnp.floating), "a floating-point dtype")
    outputs = output_sizes(kernel, x.shape[x.ndim - contract :])
    assert_floating(kernel=as_array(kernel))
    y = checkpoint_name(_product(x, kernel, contract, dtype), PRODUCT)
    if bias is None:
        return y
    assert_axes(bias=(bias, " ".join(map(str, outputs))))
    assert_floating(bias=bias)
    # In float32, so that the gradient of the bias is also summed in float32; XLA's CPU backend sums
    # bfloat16 twenty times slower.
    wide = jnp.promote_types(y.dtype, jnp.float32)
    bias = gathered(bias.astype(wide), x, contract)
    return (y.astype(wide) + jnp.expand_dims(bias, tuple(range(x.ndim - contract)))).astype(y.dtype)


def dot(
    lhs: jax.Array,
    rhs: jax.Array,
    dimensions,
    spec: PartitionSpec | None = None,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Returns `jax.lax.dot_general`, accumulated in at least float32, and integers in int32.

    The result has the sharding `spec` and the dtype `dtype`; None is the accumulator's.
    """
    operands = jnp.result_type(lhs, rhs)
    wide = jnp.int32 if jnp.issubdtype(operands, jnp.integer) else jnp.float32
    accumulator = jnp.promote_types(operands, wide)
    # cuBLAS always accumulates in float32. Requesting the narrow result halves the bytes that it
    # writes and that the next operation reads.
    rounds = dtype is not None and platform() == "gpu"
    asked = dtype if rounds else accumulator
    product = jax.lax.dot_general(
        lhs, rhs, dimensions, preferred_element_type=asked, out_sharding=spec
    )
    return product if dtype is None else product.astype(dtype)


def _product(x, kernel, contract, dtype):
    """Computes `x W` for a kernel of any form."""
    if isinstance(kernel, KernelForm):
        return kernel.product(x, contract, dtype)
    return _contract(x, kernel, contract=contract, dtype=dtype)


def _contract_value(x, kernel, *, contract, dtype):
    kernel = gathered(kernel.astype(x.dtype), x, contract)
    spec = None
    if spec_of(x) is not None:
        spec = PartitionSpec(*spec_of(x)[: x.ndim - contract], *spec_of(kernel)[contract:])
    last = tuple(range(x.ndim - contract, x.ndim))
    dimensions = (last, tuple(range(contract))), ((), ())
    return _dot_rows(x, kernel, dimensions, spec, dtype)


def _dot_matrix(x, matrix):
    """Returns `x matrix^T`; on a CPU the matrix is the left operand if `x` has few rows."""
    # XLA's CPU backend reads the left operand where it lies and first writes the right one to a
    # buffer in another order, which takes longer than a product with few rows.
    rows, dtype = x.shape[0], x.dtype
    dimensions = ((1,), (1,)), ((), ())
    few = rows <= (_FEW_INTEGERS if dtype == jnp.int8 else _FEW_ROWS)
    # The table of a tied head has no padding; from 16 rows on that no longer matters.
    if platform() != "cpu" or not few or (_aliased(matrix) and rows < 16):
        return _dot_rows(x, matrix, dimensions)
    padded = rows
    if rows == 1 and dtype.itemsize < 4:
        # One row takes four times as long as two.
        padded = 2
    elif 16 < rows < 64 and dtype != jnp.int8:
        # 20 rows take longer than 32; with jaxlib 0.12, 40 take longer than 64.
        padded = -(-rows // 32) * 32
    x = jnp.pad(x, ((0, padded - rows), (0, 0)))
    # Without the barrier XLA would turn this into the product with `x` on the left again.
    return jax.lax.optimization_barrier(dot(matrix, x, dimensions)).T[:rows]


def _dot_rows(x, kernel, dimensions, spec=None, dtype=None):
    """Returns `dot`, repeating `x` if it is a single row of bfloat16 or int8."""
    # XLA multiplies a few rows eight times as fast as one on a CPU; on a GPU it materializes the
    # products of a single row before summing them (decoding at batch size 1).
    rows = x.shape[: x.ndim - len(dimensions[0][0])]
    single = bool(rows) and math.prod(rows) == 1 and x.dtype in (jnp.bfloat16, jnp.int8)
    if single and platform() in ("cpu", "gpu"):
        # With jaxlib 0.12 a CPU multiplies four rows of bfloat16 faster than two.
        copies = 4 if platform() == "cpu" and x.dtype == jnp.bfloat16 else 2
        return dot(jnp.concatenate([x] * copies), kernel, dimensions, spec, dtype)[:1]
    return dot(x, kernel, dimensions, spec, dtype)


def dot_groups(x_BKGT_, y_BKS_, contracted: int, dtype=None) -> jax.Array:
    """Returns the products `[B K, G T, ...]` of each group with the keys or values of its head."""
    # With rows and heads as one axis XLA transposes no keys, not even of one row. A CPU multiplies
    # two rows of bfloat16 in half the time of one.
    batch, heads, groups, length, last = x_BKGT_.shape
    x = x_BKGT_.reshape(batch * heads, groups * length, last)
    y = y_BKS_.reshape(batch * heads, *y_BKS_.shape[2:])
    if x.shape[1] == 1 and x.dtype == jnp.bfloat16 and platform() == "cpu":
        x = jnp.concatenate([x, x], axis=1)
    return dot(x, y, (((2,), (contracted,)), ((0,), (0,))), dtype=dtype)[:, : groups * length]


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Type:
    """The shape and dtype of x for the backward product, if its values are not needed."""

    ndim: int
    dtype: jnp.dtype
    spec: PartitionSpec | None


def _linearize_contract(moves, x, kernel, **static):
    # A frozen kernel has no gradient, so the values of x are not saved.
    kept = (x if moves[1] else None, kernel, _Type(x.ndim, x.dtype, spec_of(x)))
    return _contract(x, kernel, **static), kept


def _push_contract(residuals, tangents, **static):
    return product_rule(partial(_contract, **static), residuals[:2], tangents)


def _pull_contract(residuals, cotangent, *, contract, dtype):
    del dtype
    x, kernel, like = residuals
    cotangent = cotangent.astype(like.dtype)
    batch = tuple(range(like.ndim - contract))
    outputs = tuple(range(len(batch), cotangent.ndim))
    rows = cotangent if x is None else x
    whole = gathered(kernel.astype(like.dtype), rows, rows.ndim - len(batch))
    contracted = (outputs, tuple(range(contract, kernel.ndim)))
    dx = dot(cotangent, whole, (contracted, ((), ())), like.spec, like.dtype)
    if x is None:
        return dx, None
    dkernel = dot(x, cotangent, ((batch, batch), ((), ())), spec_of(kernel))
    return dx, dkernel.astype(kernel.dtype)


_contract = differentiable(_contract_value, _linearize_contract, _push_contract, _pull_contract)


def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    r"""Looks up rows of a table: :math:`y_{b} = W_{i_b}`.

    Args:
        table: `[V, D]`; in an explicit mesh its rows stay sharded over the mesh axes that do not
            shard `ids`. Its columns are gathered, since the partitioner would replicate the result
            of a table sharded along D.
        ids: int `[...]`, each in [0, V); out-of-range ids in a `jax.Array` read another row.

    Returns:
        `[..., D]` in the dtype of `table`, sharded like `ids`.
    """
    sizes = assert_axes(table=(table, "V D"), ids=(ids, "..."))
    assert_ids(sizes["V"], ids=ids)
    if spec_of(table) is None:
        return table[ids]
    table = gathered(table, ids)
    table = place(table, PartitionSpec(spec_of(table)[0], None))
    return table.at[ids].get(out_sharding=PartitionSpec(*spec_of(ids), None))
