"""The product of rows with the kernel of their group, and feed-forward layers of experts."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.checks import check_argument
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    assert_floating,
    assert_ids,
    assert_integers,
    check_choice,
    mesh_axes,
    place,
    platform,
    spec_of,
    without,
)
from jaxformer.functional.derivatives import differentiable, product_rule
from jaxformer.functional.feedforward import Elementwise, activated
from jaxformer.functional.linear import Adapted, as_array, dot

GroupedImplementation = Literal["auto", "blocks", "ragged"]
"""How rows are multiplied: in blocks of the rows of one group, or with `jax.lax.ragged_dot`."""
_IMPLEMENTATIONS = get_args(GroupedImplementation)
_LARGEST_BLOCK = 128


def grouped_linear(
    x: jax.Array,
    kernels: jax.Array | Adapted,
    sizes: jax.Array,
    *,
    implementation: GroupedImplementation = "auto",
) -> jax.Array:
    r"""Multiplies each row with the kernel of its group.

    .. math:: y_r = x_r W_{g(r)}

    where the first `sizes[0]` rows are in group 0, the next `sizes[1]` in group 1, and so on. The
    kernels are cast to the dtype of `x`; products accumulate in float32, forward and backward.

    `jax.lax.ragged_dot` multiplies every row with every kernel on a CPU. There the rows are
    multiplied in blocks of one group each, so that the work does not depend on the number of
    groups.

    Adapted kernels have factors A `[E, D, r]` and B `[E, r, F]`, which are multiplied with the rows
    one after the other: :math:`y_r = x_r W_{g(r)} + \lambda\, (x_r A_{g(r)}) B_{g(r)}`.

    Args:
        x: `[R, D]`, sorted by group.
        kernels: `[E, D, F]`, optionally with low-rank factors.
        sizes: int `[E]`: the number of rows of each group. Rows after the last group are zeros in
            the result.
        implementation: "blocks", "ragged" (`jax.lax.ragged_dot`), or "auto": blocks on a CPU.

    Returns:
        `[R, F]` in the dtype of `x`.

    Raises:
        AssertionError: Shapes do not fit together, or dtypes are wrong.
        ArgumentError: The implementation is unknown, or there is dropout before the factors.

    References:
        Gale et al., MegaBlocks (https://arxiv.org/abs/2211.15841);
        Hu et al., LoRA (https://arxiv.org/abs/2106.09685).
    """
    array = as_array(kernels)
    known = assert_axes(x=(x, "R D"), kernels=(array, "E D F"), sizes=(sizes, "E"))
    assert_floating(x=x, kernels=array)
    assert_integers(sizes=sizes)
    check_choice("implementation", implementation, _IMPLEMENTATIONS)
    if implementation == "auto":
        implementation = "blocks" if platform() == "cpu" else "ragged"
    static = {"transposed": False, "blocks": implementation == "blocks"}
    if not isinstance(kernels, Adapted):
        return _grouped(x, kernels, sizes, **static)
    assert_axes(known, lora_a=(kernels.a, "E D r"), lora_b=(kernels.b, "E r F"))
    assert_floating(lora_a=kernels.a, lora_b=kernels.b)
    check_argument("dropout", kernels.dropout, not kernels.dropout, "0 for kernels of groups")
    low = _grouped(_grouped(x, kernels.a, sizes, **static), kernels.b, sizes, **static)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    y = _grouped(x, kernels.base, sizes, **static).astype(wide) + kernels.scale * low.astype(wide)
    return y.astype(x.dtype)


def expert_feed_forward(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    up: jax.Array | Adapted,
    down: jax.Array | Adapted,
    *,
    activation: Elementwise,
    gate: jax.Array | Adapted | None = None,
    up_bias: jax.Array | None = None,
    gate_bias: jax.Array | None = None,
    down_bias: jax.Array | None = None,
    real: jax.Array | None = None,
    implementation: GroupedImplementation = "auto",
) -> jax.Array:
    r"""The weighted sum of the feed-forward layers that each token is routed to.

    .. math:: y_t = \sum_k w_{t k} \, \mathrm{FFN}_{e_{t k}}(x_t)

    with the feed-forward layers of `feed_forward`. No token is dropped, regardless of the load,
    unless `real` excludes it. In an explicit mesh each device computes its own rows, with its own
    part of the hidden units. Where the mesh shards the experts, the devices that share them gather
    their tokens and routes, each multiplies the tokens that are routed to its experts, and the
    results are summed and scattered.

    Args:
        x: `[B, T, D]`.
        experts: int `[B, T, K]`: the experts of each token, in [0, E).
        weights: `[B, T, K]`: the weights of their results.
        up: `[E, D, F]`, optionally with low-rank factors, see `grouped_linear`, like the others.
        down: `[E, F, D]`.
        activation: The elementwise activation; with a gate, a function of the gate if it takes one
            argument, or of the gate and the other units if it has the attribute `joint`.
        gate: `[E, D, F]`, or None for the form without a gate.
        up_bias: `[E, F]` or None.
        gate_bias: `[E, F]` or None; only with a gate.
        down_bias: `[E, D]` or None.
        real: bool `[B, T]`: False for padding, which no expert computes and whose result is zero;
            or `[B, T, K]`: False also for an expert that drops the token, whose part is zero. None:
            all are real.
        implementation: See `grouped_linear`.

    Returns:
        `[B, T, D]` in the dtype of `x`.

    Raises:
        AssertionError: Shapes do not fit together, or dtypes are wrong.
        ArgumentError: A gate's bias is given without a gate, the activation is not a function, or
            the implementation is unknown.

    References:
        Shazeer et al., Outrageously Large Neural Networks (https://arxiv.org/abs/1701.06538).
    """
    check_argument("activation", activation, callable(activation), "a function of an array")
    fits = gate is not None or gate_bias is None
    check_argument("gate_bias", gate_bias, fits, "None, since there is no gate")
    rows = {"x": (x, "B T D"), "experts": (experts, "B T K"), "weights": (weights, "B T K")}
    axes = {"up": "E D F", "gate": "E D F", "up_bias": "E F", "gate_bias": "E F", "down": "E F D"}
    axes["down_bias"] = "E D"
    options = {"gate": gate, "up_bias": up_bias, "gate_bias": gate_bias, "down_bias": down_bias}
    options = {name: array for name, array in options.items() if array is not None}
    given = {"up": up, "down": down} | options
    masks = {} if real is None else {"real": (real, "B T K" if np.ndim(real) == 3 else "B T")}
    plain = {name: as_array(kernel) for name, kernel in given.items()}
    assert_axes(**rows, **{k: (v, axes[k]) for k, v in plain.items()}, **masks)
    assert_floating(x=x, weights=weights, **plain)
    assert_ids(plain["up"].shape[0], experts=experts)
    if real is not None:
        assert_bool(real=real)
    check_choice("implementation", implementation, _IMPLEMENTATIONS)
    real = jnp.ones_like(experts[..., 0], bool) if real is None else real
    real = real[..., None] if real.ndim == 2 else real
    names = tuple(given)

    def local(x, experts, weights, real, *arrays):
        arrays = dict(zip(names, arrays, strict=True))
        return _routed(
            x, experts, weights, real, arrays, activation, shared, summed, implementation
        )

    if spec_of(x) is None:
        shared = summed = ()
        return local(x, experts, weights, real, *given.values())
    # The rows of a device, whose kernels are gathered along the axes that shard the rows, except
    # those that shard the experts.
    batch = PartitionSpec(*spec_of(x)[:2])
    rows = mesh_axes(batch[0])
    shared = tuple(axis for axis in mesh_axes(spec_of(plain["up"])[0]) if axis in rows)
    summed = mesh_axes(without(spec_of(plain["down"])[1], set(rows)))

    def kept(array):
        features = (without(entry, set(rows)) for entry in spec_of(array)[1:])
        return place(array, PartitionSpec(shared or None, *features))

    arrays = jax.tree.map(kept, list(given.values()))
    specs = (batch, batch, batch, batch, *jax.tree.map(spec_of, arrays))
    placed = [jax.sharding.reshard(each, batch) for each in (x, experts, weights, real)]
    return jax.shard_map(local, in_specs=specs, out_specs=batch, check_vma=False)(*placed, *arrays)


def _routed(x, experts, weights, real, arrays, activation, shared, summed, implementation):
    """Computes a device's rows: with experts along `shared`, with hidden units along `summed`."""
    num, kept = as_array(arrays["up"]).shape[0], experts.shape[-1]
    if shared:
        x, experts, weights, real = (
            jax.lax.all_gather(each, shared, tiled=True) for each in (x, experts, weights, real)
        )
        experts = experts - num * jax.lax.axis_index(shared)
    own = real & (experts >= 0) & (experts < num)
    flat = jnp.where(own, experts, num).reshape(-1)
    order = jnp.argsort(flat, stable=True)
    inverse = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    sizes = jnp.sum(jax.nn.one_hot(flat, num, dtype=jnp.int32), axis=0)
    repeated = jnp.repeat(x.reshape(-1, x.shape[-1]), kept, axis=0)
    rows = _permuted(repeated, order, inverse)
    owners = flat[order]

    def product(rows, name):
        y = grouped_linear(rows, arrays[name], sizes, implementation=implementation)
        bias = arrays.get(f"{name}_bias")
        return y if bias is None or name == "down" else y + _biases(bias, owners, y.dtype)

    up = product(rows, "up")
    gate = product(rows, "gate") if "gate" in arrays else None
    units = (up,) if gate is None else (gate, up)
    y = _permuted(product(activated(activation, *units), "down"), inverse, order)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    shape = (*experts.shape, x.shape[-1])
    scales = jnp.where(own, weights, 0).astype(wide)[..., None]
    result = jnp.sum(y.reshape(shape).astype(wide) * scales, axis=-2)
    if (bias := arrays.get("down_bias")) is not None:
        if summed:  # one of them adds it
            bias = jnp.where(jax.lax.axis_index(summed) == 0, bias, 0)
        result += jnp.sum(_biases(bias, flat, wide).reshape(shape) * scales, axis=-2)
    if shared:
        result = jax.lax.psum_scatter(result, shared, tiled=True)
    return (jax.lax.psum(result, summed) if summed else result).astype(x.dtype)


def _biases(bias, owners, dtype):
    """Returns the bias of the owner of each row, zero for padding."""
    chosen = jax.nn.one_hot(owners, bias.shape[0], dtype=dtype)
    return dot(chosen, bias.astype(dtype), (((1,), (0,)), ((), ())), dtype=dtype)


# Rows are moved by gathers, forward and backward; the transpose of a gather would be a scatter.
_permuted = differentiable(
    lambda x, order, inverse: x[order],
    lambda _, x, order, inverse: (_permuted(x, order, inverse), (order, inverse)),
    lambda kept, tangents: _permuted(tangents[0], *kept),
    lambda kept, cotangent: (_permuted(cotangent, kept[1], kept[0]), None, None),
)


# The grouped product and its gradient with respect to the kernels: each is the other's derivative.


def _grouped_value(x, kernels, sizes, *, transposed, blocks):
    kernels = kernels.astype(x.dtype)
    if blocks:
        y = _product_of_blocks(x, kernels, sizes, transposed)
    else:
        kernels = kernels.swapaxes(1, 2) if transposed else kernels
        wide = jnp.promote_types(x.dtype, jnp.float32)
        y = jax.lax.ragged_dot(x, kernels, sizes, preferred_element_type=wide).astype(x.dtype)
    grouped = jnp.arange(x.shape[0]) < jnp.sum(sizes)
    return jnp.where(grouped[:, None], y, 0)


def _outer_value(x, y, sizes, *, blocks):
    y = y.astype(x.dtype)
    if blocks:
        return _outer_of_blocks(x, y, sizes)
    numbers = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jax.lax.ragged_dot_general(x, y, sizes, numbers, preferred_element_type=wide)


def _pull_grouped(kept, cotangent, *, transposed, blocks):
    x, kernels, sizes, like = kept
    cotangent = cotangent.astype(like.dtype)
    dx = _grouped(cotangent, kernels, sizes, transposed=not transposed, blocks=blocks)
    if x is None:
        return dx, None, None
    pair = (cotangent, x) if transposed else (x, cotangent)
    return dx, _outer(*pair, sizes, blocks=blocks).astype(kernels.dtype), None


def _push_grouped(kept, tangents, **static):
    x, kernels, sizes, _ = kept
    return product_rule(
        lambda x, kernels: _grouped(x, kernels, sizes, **static), (x, kernels), tangents[:2]
    )


def _linearize_grouped(moves, x, kernels, sizes, **static):
    # Frozen kernels have no gradient, so the values of x are not saved.
    kept = (x if moves[1] else None, kernels, sizes, jnp.zeros((), x.dtype))
    return _grouped(x, kernels, sizes, **static), kept


def _push_outer(kept, tangents, **static):
    x, y, sizes = kept
    return product_rule(lambda x, y: _outer(x, y, sizes, **static), (x, y), tangents[:2])


def _pull_outer(kept, cotangent, *, blocks):
    x, y, sizes = kept
    dx = _grouped(y, cotangent, sizes, transposed=True, blocks=blocks).astype(x.dtype)
    return dx, _grouped(x, cotangent, sizes, transposed=False, blocks=blocks).astype(y.dtype), None


_grouped = differentiable(_grouped_value, _linearize_grouped, _push_grouped, _pull_grouped)
_outer = differentiable(
    _outer_value,
    lambda _, *args, **static: (_outer(*args, **static), args),
    _push_outer,
    _pull_outer,
)


def _block_size(rows: int, groups: int) -> int:
    """Returns the rows of a block: a power of two, about those of a group; 2 for few rows."""
    return min(_LARGEST_BLOCK, 2 ** max(1, (rows // groups).bit_length() - 1))


def _product_of_blocks(x, kernels, sizes, transposed):
    """Multiplies the rows of a group block by block, in the order of the rows."""
    # A group's last block may end with rows of the next one, which overwrites their products.
    block = _block_size(x.shape[0], kernels.shape[0])
    x = jnp.pad(x, ((0, block), (0, 0)))
    dimensions = (((1,), (1 if transposed else 0,)), ((), ()))

    starts, busy = jnp.cumsum(sizes) - sizes, jnp.argsort(sizes == 0, stable=True)

    def group(number, y):
        own = busy[number]
        kernel = jax.lax.dynamic_index_in_dim(kernels, own, keepdims=False)

        def multiply(number, y):
            first = starts[own] + number * block
            rows = jax.lax.dynamic_slice_in_dim(x, first, block)
            product = dot(rows, kernel, dimensions)
            return jax.lax.dynamic_update_slice_in_dim(y, product, first, 0)

        return jax.lax.fori_loop(0, -(-sizes[own] // block), multiply, y)

    # Rounded once: XLA rounds a block that it writes into an array element by element.
    wide = jnp.promote_types(x.dtype, jnp.float32)
    y = jnp.zeros((x.shape[0], kernels.shape[1 if transposed else 2]), wide)
    # The kernels of groups without rows are not read.
    y = jax.lax.fori_loop(0, jnp.count_nonzero(sizes), group, y)
    return y[:-block].astype(x.dtype)


def _outer_of_blocks(x, y, sizes):
    """Adds up the products of the blocks of each group, in float32."""
    block = _block_size(x.shape[0], sizes.shape[0])
    x, y = (jnp.pad(each, ((0, block), (0, 0))) for each in (x, y))
    wide = jnp.promote_types(x.dtype, jnp.float32)

    def group(own):
        start, size = own

        def add(number, total):
            first = number * block
            inside = (first + jnp.arange(block) < size)[:, None]
            rows, others = (
                jnp.where(inside, jax.lax.dynamic_slice_in_dim(each, start + first, block), 0)
                for each in (x, y)
            )
            return total + dot(rows, others, (((0,), (0,)), ((), ())))

        total = jnp.zeros((x.shape[1], y.shape[1]), wide)
        return jax.lax.fori_loop(0, -(-size // block), add, total)

    return jax.lax.map(group, (jnp.cumsum(sizes) - sizes, sizes))
