"""Masks must be applied before the softmax: afterwards they leak and rows no longer sum to 1."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional.arrays import assert_axes, assert_bool, assert_floating
from jaxformer.lab.drawing import COLOURS, canvas, frame, heat_map
from jaxformer.lab.experiments.report import Report


class MaskedWeights(NamedTuple):
    """Attention weights under a mask."""

    weights: jax.Array
    """float32 `[T, S]`."""
    row_sums: jax.Array
    """float32 `[T]`: the sum over the keys of each query."""
    leak: jax.Array
    """float32 `[T]`: how much the weights of allowed keys depend on masked scores."""


def mask_before_softmax(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    r"""Computes attention weights float32 `[T, S]` with -inf added to the scores of masked keys.

    .. math:: p_{ts} = m_{ts} e^{a_{ts}} / \sum_j m_{tj} e^{a_{tj}}

    A query that may not attend to any key gets zeros.
    """
    _check(scores, allowed)
    return jax.nn.softmax(scores.astype(jnp.float32), axis=-1, where=allowed)


def mask_after_softmax(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    r"""Computes attention weights with the mask multiplied after the softmax, which is wrong.

    .. math:: p_{ts} = m_{ts} e^{a_{ts}} / \sum_j e^{a_{tj}}

    Rows no longer sum to 1, and the denominator still depends on hidden keys: a causal model
    trained with it sees the future.
    """
    _check(scores, allowed)
    return jax.nn.softmax(scores.astype(jnp.float32), axis=-1) * allowed


def masked_weights(weights_of, scores: jax.Array, allowed: jax.Array) -> MaskedWeights:
    r"""Measures a way to apply a mask; the leak is exactly 0 where hidden keys have no effect.

    .. math:: \mathrm{leak}_t = \sum_{s\ \mathrm{allowed}} \sum_{j\ \mathrm{hidden}}
              |\partial p_{ts} / \partial a_{tj}|
    """

    def row(scores_S: jax.Array, allowed_S: jax.Array) -> jax.Array:
        return weights_of(scores_S[None], allowed_S[None])[0]

    weights = weights_of(scores, allowed)
    jacobian_TSJ = jax.vmap(jax.jacrev(row))(scores, allowed)
    crossing_TSJ = allowed[:, :, None] & ~allowed[:, None, :]
    leak = jnp.sum(jnp.abs(jacobian_TSJ), axis=(1, 2), where=crossing_TSJ)
    return MaskedWeights(weights, weights.sum(axis=-1), leak)


def mask_order_report(length: int = 12, seed: int = 0) -> Report:
    """Compares a causal mask applied before and after the softmax."""
    scores = 1.5 * jax.random.normal(jax.random.key(seed), (length, length))
    allowed = jnp.tril(jnp.ones((length, length), bool))
    before = masked_weights(mask_before_softmax, scores, allowed)
    after = masked_weights(mask_after_softmax, scores, allowed)
    rows = [
        [t, *(float(x[t]) for x in (before.row_sums, after.row_sums, before.leak, after.leak))]
        for t in range(length)
    ]
    return Report(
        name="mask",
        title="A mask belongs before the softmax",
        setting=(
            f"Random scores of {length} queries and keys under a causal mask, which is added as "
            "-inf before the softmax, or multiplied with the weights after it."
        ),
        finding=(
            f"With -inf before the softmax every row sums to 1 and the leak is exactly "
            f"{float(before.leak.max()):g}. Multiplied after it, the first row sums to "
            f"{float(after.row_sums[0]):.2f}, and allowed weights depend on hidden keys: the leak, "
            f"the sum of |dp/da| from hidden scores a to allowed weights p, reaches "
            f"{float(after.leak.max()):.2f}, so a model could read the future."
        ),
        header=("query", "sum, before", "sum, after", "leak, before", "leak, after"),
        rows=rows,
        figure=_draw(before, after),
    )


def _draw(before: MaskedWeights, after: MaskedWeights):
    title = "A causal mask before the softmax, and multiplied after it, which is wrong"
    figure, ((one, two), (sums, leaks)) = canvas(title, (9, 8), 2, 2)
    limits = {"vmin": 0.0, "vmax": 1.0, "cmap": "Blues", "bar": "weight"}
    heat_map(one, before.weights, "-inf before the softmax", "key", "query", **limits)
    heat_map(two, after.weights, "times 0 or 1 after it", "key", "query", **limits)
    places = np.arange(len(before.row_sums))
    lines = (
        (sums, "Sum of the weights of a query", "sum", "row_sums"),
        (leaks, "Leak from hidden keys", "sum of |dp/da|", "leak"),
    )
    for axes, name, quantity, field in lines:
        frame(axes, name, "query", quantity)
        for label, found, colour in (("before", before, COLOURS[0]), ("after", after, COLOURS[1])):
            values = getattr(found, field)
            axes.plot(places, values, color=colour, marker="o", markersize=4, label=label)
        axes.set_ylim(bottom=-0.02)
    sums.legend(title="the mask is applied", frameon=False)
    return figure


def _check(scores: jax.Array, allowed: jax.Array) -> None:
    assert_axes(scores=(scores, "T S"), allowed=(allowed, "T S"))
    assert_floating(scores=scores)
    assert_bool(allowed=allowed)
