"""Why scores are divided by sqrt(d_k): the variance of q.k, and its effect on the softmax."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.experiments.report import Report


class ScoreStatistics(NamedTuple):
    """Statistics of random scores, float32 `[head widths, 2]`: without and with scaling."""

    head_dims: tuple[int, ...]
    """The widths of a head (d_k)."""
    variance: np.ndarray
    entropy: np.ndarray
    """The mean entropy of the softmax over the keys, as a fraction of its maximum, log S."""
    largest: np.ndarray
    """The mean of the largest weight."""
    slope: np.ndarray
    """The mean of 1 - sum p^2, the trace of the softmax Jacobian; at 0, no gradient passes."""


def score_statistics(
    key: jax.Array, head_dims: Sequence[int], *, num_keys: int = 64, samples: int = 2048
) -> ScoreStatistics:
    r"""Measures the scores of random queries and keys, with and without 1/sqrt(d_k).

    For q and k with independent components of mean 0 and variance 1:

    .. math:: \mathrm{Var}(q \cdot k) = d_k, \qquad \mathrm{Var}(q \cdot k / \sqrt{d_k}) = 1
    """
    check_argument("head_dims", head_dims, len(head_dims) > 0 and min(head_dims) >= 1, "1 or more")
    check_argument("num_keys", num_keys, num_keys >= 2, "at least 2")
    check_argument("samples", samples, samples >= 2, "at least 2")
    found = [
        _statistics(key, head_dim, num_keys, samples, scaled)
        for head_dim in head_dims
        for scaled in (False, True)
    ]
    columns = np.array(found, np.float32).reshape(len(head_dims), 2, 4).transpose(2, 0, 1)
    return ScoreStatistics(tuple(head_dims), *columns)


def _statistics(
    key: jax.Array, head_dim: int, num_keys: int, samples: int, scaled: bool
) -> list[float]:
    query_key, key_key = jax.random.split(jax.random.fold_in(key, head_dim))
    query_BH = jax.random.normal(query_key, (samples, head_dim))
    keys_BSH = jax.random.normal(key_key, (samples, num_keys, head_dim))
    scores_BS = jnp.einsum("bh,bsh->bs", query_BH, keys_BSH)
    scores_BS = scores_BS / head_dim**0.5 if scaled else scores_BS
    weights_BS = jax.nn.softmax(scores_BS)
    entropy_B = -jnp.sum(weights_BS * jax.nn.log_softmax(scores_BS), axis=-1)
    slope_B = 1 - jnp.sum(weights_BS**2, axis=-1)
    parts = scores_BS.var(), entropy_B.mean() / np.log(num_keys), weights_BS.max(axis=-1).mean()
    return [float(part) for part in (*parts, slope_B.mean())]


def softmax_scale_report(
    head_dims: Sequence[int] = (1, 4, 16, 64, 256, 1024), num_keys: int = 64, seed: int = 0
) -> Report:
    """Reports the effect of 1/sqrt(d_k) on the scores and on the softmax."""
    found = score_statistics(jax.random.key(seed), head_dims, num_keys=num_keys)
    first, last = found.head_dims[0], found.head_dims[-1]
    header = ["d_k"]
    for name in ("variance", "entropy / log S", "largest weight", "1 - sum p^2"):
        header += [name, f"{name}, scaled"]
    columns = (found.variance, found.entropy, found.largest, found.slope)
    rows = [
        [d, *(float(x) for column in columns for x in column[row])]
        for row, d in enumerate(found.head_dims)
    ]
    return Report(
        name="softmax",
        title="Why scores are divided by sqrt(d_k)",
        setting=(
            f"Queries and {num_keys} keys with independent standard normal components, for several "
            "widths d_k of a head; the scores q.k as they are, and divided by sqrt(d_k)."
        ),
        finding=(
            f"The variance of q.k grows as d_k, from {found.variance[0, 0]:.2f} at {first} to "
            f"{found.variance[-1, 0]:.0f} at {last}; divided by sqrt(d_k) it stays near 1. At "
            f"d_k = {last} the softmax of plain scores puts {found.largest[-1, 0]:.0%} on one key, "
            f"and the trace of its Jacobian, {found.slope[-1, 0]:.3f}, leaves little gradient; "
            f"scaled, these are {found.largest[-1, 1]:.0%} and {found.slope[-1, 1]:.3f}."
        ),
        header=header,
        rows=rows,
        figure=_draw(found, num_keys),
    )


def _draw(found: ScoreStatistics, num_keys: int):
    title = f"Scores of random queries and {num_keys} keys, by the width of a head"
    figure, ((left, middle, right),) = canvas(title, (12, 4), 1, 3)
    panels = (
        (left, found.variance, "Variance of a score", "variance"),
        (middle, found.entropy, "Entropy of the softmax", "entropy / log S"),
        (right, found.slope, "Gradient through the softmax", "trace of the Jacobian, 1 - sum p²"),
    )
    for axes, values, name, quantity in panels:
        frame(axes, name, "width of a head, d_k", quantity)
        axes.set_xscale("log", base=4)
        axes.set_xticks(found.head_dims, [str(d) for d in found.head_dims])
        for column, label in enumerate(("q·k", "q·k / √d_k")):
            line = {"color": COLOURS[1 - column], "marker": "o", "markersize": 4}
            axes.plot(found.head_dims, values[:, column], label=label, **line)
        axes.minorticks_off()
        axes.set_ylim(0, 1.05)
    left.set_yscale("log", base=4)
    ticks = [4**n for n in range(8) if 4**n <= 2 * found.variance.max()]
    left.set_yticks(ticks, [str(tick) for tick in ticks])
    left.minorticks_off()
    left.set_ylim(0.4, 2 * found.variance.max())
    expected = {"color": "#555555", "linestyle": ":", "label": "d_k"}
    left.plot(found.head_dims, found.head_dims, **expected)
    left.legend(frameon=False)
    return figure
