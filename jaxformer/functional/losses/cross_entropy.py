"""Cross-entropy sums, dense or chunked without materializing the [B, T, V] logits."""
# long: the chunks share one rule of differentiation and one of sharding.

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, PROBABILITY, at_least
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_ids,
    assert_integers,
    assert_numbers,
    gathered,
    mesh_axes,
    place,
    spec_of,
    static,
)
from jaxformer.functional.derivatives import differentiable, is_zero
from jaxformer.functional.linear import Kernel, as_array, dot, linear


class LossSums(NamedTuple):
    """Sums over tokens, all float32 scalars.

    Sums of several batches add up to those of the concatenated batch, so `loss / weight` after
    adding is the loss of the large batch. Only `loss` carries a gradient.
    """

    loss: jax.Array
    """Weighted token losses, including label smoothing and z-loss."""
    weight: jax.Array
    """Weights."""
    correct: jax.Array
    """Weights of the tokens whose target has the largest logit (a tie counts as correct)."""
    z_loss: jax.Array
    """The part of `loss` that is z-loss."""


class _Terms(NamedTuple):
    label_smoothing: float
    z_loss: float
    softcap: float | None = None


def cross_entropy(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> LossSums:
    r"""Weighted sums of the softmax cross-entropy of each token.

    .. math::
      \ell = \log Z - (1 - \varepsilon)\, x_y - \frac{\varepsilon}{V} \sum_v x_v
             + \zeta \log^2 Z, \qquad Z = \sum_v e^{x_v}

    Arithmetic is in float32. The target's logit is picked by comparison, not by a gather, so the
    vocabulary may be sharded.

    Args:
        logits: `[..., V]`.
        targets: `[...]` integers in `[0, V)`; arbitrary where the weight is 0. Other values make
            the loss NaN.
        weights: `[...]`, 0 for ignored tokens; None means 1 for every token.
        label_smoothing: ε, the probability mass spread evenly over the vocabulary.
        z_loss: ζ, the strength of the regularization of log Z towards 0.

    Returns:
        The sums over all tokens.

    Raises:
        AssertionError: Shapes do not fit together, or an array holds another kind of numbers.
        ArgumentError: A number is out of its range, or NumPy targets are out of range.

    References:
        Szegedy et al., Rethinking the Inception Architecture (https://arxiv.org/abs/1512.00567);
        Chowdhery et al., PaLM (https://arxiv.org/abs/2204.02311), for the z-loss.
    """
    sizes = assert_axes(logits=(logits, "... V"))
    assert_floating(logits=logits)
    terms = _terms(label_smoothing, z_loss)
    weights = _checked_weights(weights, targets, logits.shape[:-1], sizes["V"])
    losses, metrics = _token_losses(logits, None, targets, terms)
    return _sums(losses, metrics, weights, targets, sizes["V"])


def chunked_cross_entropy(
    hidden: jax.Array,
    head: Kernel,
    targets: jax.Array,
    weights: jax.Array | None = None,
    *,
    chunk_size: int,
    bias: jax.Array | None = None,
    softcap: float | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> LossSums:
    r"""Computes `cross_entropy` of `hidden @ head` without materializing the `[B, T, V]` logits.

    .. math:: x = s \tanh((h W + \beta) / s)

    A scan over chunks of positions computes a chunk's logits, its losses and, when differentiated,
    its gradients at once: three products in all, and `[B, chunk_size, V]` of memory. Products take
    operands in the dtype of `hidden` (the logits' gradient is rounded to it) and accumulate in
    float32; the gradient of `head` stays in float32 across chunks. In an explicit mesh, `hidden`
    may be sharded over its rows and `head` over both axes; the gradient of `head` is summed over
    the rows' devices once, after the last chunk.

    Args:
        hidden: `[B, T, D]`.
        head: `[D, V]`, usually a float32 master weight, or another form of it, see
            `functional.linear`.
        targets: `[B, T]` integers in `[0, V)`, as in `cross_entropy`.
        weights: `[B, T]`, 0 for ignored tokens; None means 1 for every token. A chunk with only
            zero weights is skipped, and its weights have no gradient.
        chunk_size: Positions per chunk, of every row; T need not be a multiple.
        bias: `[V]` or None.
        softcap: S, the bound of the logits' magnitude, or None.
        label_smoothing: ε, as in `cross_entropy`.
        z_loss: ζ, as in `cross_entropy`.

    Returns:
        The sums over all tokens.

    Raises:
        AssertionError: Shapes do not fit together, or an array holds another kind of numbers.
        ArgumentError: A number is out of its range, or NumPy targets are out of range.
    """
    sizes = assert_axes(hidden=(hidden, "B T D"), head=(as_array(head), "D V"))
    assert_floating(hidden=hidden, head=as_array(head))
    chunk_size = static("chunk_size", chunk_size, at_least(1))
    softcap = None if softcap is None else static("softcap", softcap, POSITIVE)
    weights = _checked_weights(weights, targets, hidden.shape[:2], sizes["V"])
    if bias is not None:
        assert_axes(sizes, bias=(bias, "V"))
        assert_floating(bias=bias)
        bias = gathered(bias.astype(jnp.promote_types(hidden.dtype, jnp.float32)), hidden, 1)
    hidden, targets, weights = _rows_of_parts(hidden, targets, weights)
    terms = _terms(label_smoothing, z_loss, softcap)
    chunked = _chunked if as_array(head) is head else _chunked_products
    return chunked(hidden, head, bias, weights, targets, chunk_size=chunk_size, terms=terms)


def binary_cross_entropy(scores: jax.Array, targets: jax.Array) -> jax.Array:
    r"""Returns the binary cross-entropy of each element, from log-odds s and targets y.

    .. math:: -y \log \sigma(s) - (1 - y) \log (1 - \sigma(s)) = \log (1 + e^s) - s y
    """
    return jax.nn.softplus(scores) - scores * targets


def map_chunks(
    function: Callable[..., jax.Array], *arrays: jax.Array, chunk_size: int
) -> jax.Array:
    """Returns a position-wise function of arrays `[B, T, ...]`, computed in chunks of positions.

    The backward pass recomputes each chunk, so at most one is in memory.
    """
    recomputed = jax.checkpoint(function)
    sharded = spec_of(arrays[0])
    arrays = _rows_of_parts(*arrays)
    chunks = tuple(_chunks(x, chunk_size) for x in arrays)
    _, results = jax.lax.scan(lambda _, chunk: (None, recomputed(*chunk)), None, chunks)
    return _parts_of_rows(_joined(results, arrays[0].shape[1]), sharded)


def _terms(label_smoothing, z_loss, softcap=None):
    smoothing = static("label_smoothing", label_smoothing, PROBABILITY)
    return _Terms(smoothing, static("z_loss", z_loss, NOT_NEGATIVE), softcap)


def _checked_weights(weights, targets, shape, vocab_size):
    """Checks the targets as far as possible; returns their weights, which default to 1."""
    axes = " ".join(map(str, shape))
    assert_axes(targets=(targets, axes))
    assert_integers(targets=targets)
    if weights is None:
        assert_ids(vocab_size, targets=targets)
        return jnp.ones_like(targets, dtype=jnp.float32)
    assert_axes(weights=(weights, axes))
    assert_numbers(weights=weights)
    if isinstance(targets, np.ndarray) and isinstance(weights, np.ndarray):
        assert_ids(vocab_size, targets=targets[weights != 0])
    return weights.astype(jnp.promote_types(weights.dtype, jnp.float32))


def _token_losses(raw, bias, targets, terms):
    """Returns the loss of each token `[...]`, and its (correct, z-loss), from logits `[..., V]`."""
    logits = raw.astype(jnp.promote_types(raw.dtype, jnp.float32))
    if bias is not None:
        logits += jnp.expand_dims(bias, tuple(range(logits.ndim - 1)))
    if terms.softcap is not None:
        logits = terms.softcap * jnp.tanh(logits / terms.softcap)
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_z = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)) + largest[..., 0]
    vocabulary = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    picked = jnp.sum(jnp.where(vocabulary == targets[..., None], logits, 0), axis=-1)
    attracted = picked
    if terms.label_smoothing:
        attracted = picked + terms.label_smoothing * (jnp.mean(logits, axis=-1) - picked)
    z_losses = terms.z_loss * jnp.square(log_z)
    correct = (picked >= largest[..., 0]).astype(logits.dtype)
    return log_z - attracted + z_losses, (correct, z_losses)


def _sums(losses, metrics, weights, targets, vocab_size):
    correct, z_losses = jax.lax.stop_gradient(metrics)
    wrong = (weights != 0) & ((targets < 0) | (targets >= vocab_size))
    return LossSums(
        loss=jnp.sum(jnp.where(wrong, jnp.nan, losses * weights)),
        weight=jax.lax.stop_gradient(jnp.sum(weights)),
        correct=jnp.sum(correct * jax.lax.stop_gradient(weights)),
        z_loss=jnp.sum(z_losses * jax.lax.stop_gradient(weights)),
    )


def _rows_of_parts(*arrays):
    """Counts each device's part of a row as a row, where tokens are sharded; no data are moved."""
    sharded = spec_of(arrays[0])
    if sharded is None or sharded[1] is None:
        return arrays
    rows = _both_axes(sharded)

    def apart(x):
        rest = [None] * (x.ndim - 2)
        given = PartitionSpec(*sharded[:2], *rest)
        return _renamed(place(x, given), given, PartitionSpec(rows, None, *rest))

    return tuple(map(apart, arrays))


def _parts_of_rows(x, sharded):
    """The inverse of `_rows_of_parts`, for arrays that were sharded so."""
    if sharded is None or sharded[1] is None:
        return x
    rest = [None] * (x.ndim - 2)
    given = PartitionSpec(_both_axes(sharded), None, *rest)
    return _renamed(x, given, PartitionSpec(*sharded[:2], *rest))


def _both_axes(sharded):
    return (*mesh_axes(sharded[0]), *mesh_axes(sharded[1]))


def _renamed(x, given, wanted):
    """Redeclares which axes are sharded, without moving data."""
    return jax.shard_map(lambda x: x, in_specs=given, out_specs=wanted, check_vma=False)(x)


def _chunks(x, chunk_size):
    """`[B, T, ...]` to `[n, B, C, ...]`, zeros after the last position."""
    count = -(-x.shape[1] // chunk_size)
    length = -(-x.shape[1] // count)
    padding = [(0, 0), (0, count * length - x.shape[1])] + [(0, 0)] * (x.ndim - 2)
    chunks = jnp.pad(x, padding).reshape(x.shape[0], count, length, *x.shape[2:])
    return jnp.moveaxis(chunks, 1, 0)


def _joined(chunks, length):
    """`[n, B, C, ...]` to `[B, T, ...]`: the inverse of `_chunks`."""
    x = jnp.moveaxis(chunks, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _specs(hidden, whole):
    """Returns the shardings of the logits and of the head's gradient, which is summed over rows."""
    if spec_of(hidden) is None:
        return None, None
    *batch, _ = spec_of(hidden)
    rows = {axis for entry in batch for axis in mesh_axes(entry)}
    # Unreduced: each device sums its rows, and one reduction over devices follows the scan.
    return (
        PartitionSpec(*batch, spec_of(whole)[1]),
        PartitionSpec(*spec_of(whole), unreduced=rows),
    )


def _is_scattered(summed, spec):
    """Whether an array that is summed over devices is then sharded over them."""
    return summed is not None and any(summed.unreduced & set(mesh_axes(e)) for e in spec)


def _where_tokens_count(step):
    """`step` of a scan over (hidden, targets, weights); zeros for a chunk without a weight."""

    def skip(carry, chunk):
        _, outputs = jax.eval_shape(step, carry, chunk)
        # Types do not determine the sharding of rows if `jax.shard_map` is manual over another mesh
        # axis.
        rows = spec_of(chunk[-1])

        def zeros(like):
            spec = None if rows is None else PartitionSpec(*rows, *[None] * (like.ndim - 2))
            return place(jnp.zeros(like.shape, like.dtype), spec)

        return carry, jax.tree.map(zeros, outputs)

    return lambda carry, chunk: jax.lax.cond(jnp.any(chunk[-1] != 0), step, skip, carry, chunk)


def _chunked_products(hidden, head, bias, weights, targets, *, chunk_size, terms):
    """Like `_chunked`, for a head that is not an array; differentiation recomputes each chunk."""

    @jax.checkpoint
    def chunk_losses(_, chunk):
        hidden_BCD, targets_BC, _ = chunk
        logits_BCV = linear(hidden_BCD, head, dtype=jnp.promote_types(hidden.dtype, jnp.float32))
        return None, _token_losses(logits_BCV, bias, targets_BC, terms)

    chunks = jax.tree.map(lambda x: _chunks(x, chunk_size), (hidden, targets, weights))
    _, (losses, metrics) = jax.lax.scan(_where_tokens_count(chunk_losses), None, chunks)
    return _sums(losses, metrics, chunks[2], chunks[1], as_array(head).shape[1])


def _chunked_value(hidden, head, bias, weights, targets, *, chunk_size, terms):
    whole_DV = gathered(head.astype(hidden.dtype), hidden, 1)
    logits_spec, _ = _specs(hidden, whole_DV)

    def chunk_losses(_, chunk):
        hidden_BCD, targets_BC, _ = chunk
        logits_BCV = dot(hidden_BCD, whole_DV, (((2,), (0,)), ((), ())), logits_spec)
        return None, _token_losses(logits_BCV, bias, targets_BC, terms)

    chunks = jax.tree.map(lambda x: _chunks(x, chunk_size), (hidden, targets, weights))
    _, (losses, metrics) = jax.lax.scan(_where_tokens_count(chunk_losses), None, chunks)
    return _sums(losses, metrics, chunks[2], chunks[1], head.shape[1])


def _linearize_chunked(moves, hidden, head, bias, weights, targets, *, chunk_size, terms):
    # A frozen head has no gradient.
    learns = moves[1]
    whole_DV = gathered(head.astype(hidden.dtype), hidden, 1)
    logits_spec, dhead_spec = _specs(hidden, whole_DV)

    def chunk_gradients(carry, chunk):
        dhead_DV, dbias_V = carry
        hidden_BCD, targets_BC, weights_BC = chunk
        logits_BCV = dot(hidden_BCD, whole_DV, (((2,), (0,)), ((), ())), logits_spec)

        def losses(logits_BCV):
            return _token_losses(logits_BCV, bias, targets_BC, terms)

        losses_BC, pullback, metrics = jax.vjp(losses, logits_BCV, has_aux=True)
        (dlogits_BCV,) = pullback(weights_BC.astype(losses_BC.dtype))
        if bias is not None:
            dbias_V += jnp.sum(dlogits_BCV, axis=(0, 1))
        dlogits_BCV = dlogits_BCV.astype(hidden.dtype)
        dhidden_BCD = dot(dlogits_BCV, whole_DV, (((2,), (1,)), ((), ())), spec_of(hidden))
        if learns:
            dhead_DV += dot(hidden_BCD, dlogits_BCV, (((0, 1), (0, 1)), ((), ())), dhead_spec)
        return (dhead_DV, dbias_V), (losses_BC, metrics, dhidden_BCD.astype(hidden.dtype))

    accumulator = jnp.promote_types(hidden.dtype, jnp.float32)
    zeros_DV = place(jnp.zeros(head.shape, accumulator), dhead_spec) if learns else None
    start = zeros_DV, jax.tree.map(jnp.zeros_like, bias)
    chunks = jax.tree.map(lambda x: _chunks(x, chunk_size), (hidden, targets, weights))
    (dhead_DV, dbias_V), (losses, metrics, dhidden) = jax.lax.scan(
        _where_tokens_count(chunk_gradients), start, chunks
    )
    dhidden = _joined(dhidden, hidden.shape[1])
    if learns:
        dhead_DV = place(dhead_DV, spec_of(head)).astype(head.dtype)
        if _is_scattered(dhead_spec, spec_of(head)):
            # Otherwise the compiler reduces over devices only after the layers' backward pass,
            # during which each device keeps the full gradient.
            dhidden, dhead_DV = jax.lax.optimization_barrier((dhidden, dhead_DV))
    dweights = _joined(losses, hidden.shape[1]).astype(weights.dtype)
    gradients = (dhidden, dhead_DV, dbias_V, dweights)
    return _sums(losses, metrics, chunks[2], chunks[1], head.shape[1]), gradients


def _push_chunked(gradients, tangents, **_):
    """The loss is a scalar, so its gradient determines its derivative."""
    pairs = zip(tangents, gradients, strict=False)
    products = [jnp.sum(t.astype(g.dtype) * g) for t, g in pairs if not is_zero(t)]
    return LossSums(sum(products), None, None, None)


def _pull_chunked(gradients, cotangent, **_):
    scaled = jax.tree.map(lambda g: (g * cotangent.loss).astype(g.dtype), gradients)
    return *scaled, None


_chunked = differentiable(_chunked_value, _linearize_chunked, _push_chunked, _pull_chunked)
