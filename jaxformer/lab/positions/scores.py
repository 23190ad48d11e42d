"""Absolute and relative scores: the four terms of added codes, and the scores of every scheme."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    NoPosition,
    Position,
    RoPE,
    Sinusoidal,
    T5Bias,
    score_terms,
)
from jaxformer.lab.drawing import canvas, heat_map
from jaxformer.lab.positions.compiled import position_scores, relative_share, sinusoidal_code
from jaxformer.lab.positions.section import Number, Picture, PositionsConfig, Section

_TERMS = {
    "content_content": "content - content",
    "content_position": "content - position",
    "position_content": "position - content",
    "position_position": "position - position",
}


def scores_section(config: PositionsConfig) -> Section:
    """Describes the terms of scores with added codes, and the share explained by distance."""
    text = (
        "A code p that is added to the embeddings x gives q.k = (x_m + p_m)^T W (x_n + p_n) with "
        "W = W_q^T W_k: four terms. The middle two tie a token to a position, and even the last "
        "depends on where both tokens stand unless W commutes with the rotations that move p. "
        "That makes the score absolute. RoPE, ALiBi and T5 act on the score itself and have no "
        "such terms.",
        "The relative share is the part of the variance of the scores that m - n explains: 1 for "
        "a relative scheme. It is measured with the same token at all positions, so that only "
        "positions differ, and with random projections.",
    )
    pictures, numbers = [], []
    if "sinusoidal" in config.schemes:
        picture, numbers = _four_terms(config)
        pictures.append(picture)
    picture, shares = _by_scheme(config)
    return Section("Scores", text, [*pictures, picture], [*numbers, *shares])


def schemes(config: PositionsConfig) -> dict[str, Position]:
    """Returns the positional schemes of the report, by name, for `config.length` tokens."""
    found = {
        "none": NoPosition(),
        "integer": Integer(max_length=config.length),
        "binary": Binary(num_bits=config.num_bits),
        "sinusoidal": Sinusoidal(theta=config.theta),
        "learned": Learned(max_length=config.length),
        "rope": RoPE(theta=config.theta),
        "alibi": ALiBi(),
        "t5": T5Bias(
            num_buckets=config.num_buckets, max_distance=config.max_distance, bidirectional=True
        ),
    }
    return {name: scheme for name, scheme in found.items() if name in config.schemes}


def _kernels(config: PositionsConfig, width: int) -> tuple[jax.Array, jax.Array]:
    """Returns random projections of queries and keys, [D, N, H] each, that preserve norms."""
    rng = np.random.default_rng(config.seed)
    shape = (config.model_dim, config.num_heads, width)
    pair = rng.normal(size=(2, *shape)) * config.model_dim**-0.5
    return jnp.asarray(pair[0], jnp.float32), jnp.asarray(pair[1], jnp.float32)


def _four_terms(config: PositionsConfig) -> tuple[Picture, list[Number]]:
    rng = np.random.default_rng(config.seed + 1)
    content = jnp.asarray(rng.normal(size=(config.length, config.model_dim)), jnp.float32)
    options = {"model_dim": config.model_dim, "theta": config.theta, "layout": "interleaved"}
    code = sinusoidal_code(jnp.arange(config.length), **options)
    width = config.model_dim // config.num_heads
    query, key = (kernel[:, 0] for kernel in _kernels(config, width))
    terms = score_terms(content, code, query, key)
    unit = jnp.eye(config.model_dim)
    title = "The four terms of a score with a sinusoidal code (random tokens and projections)"
    figure, axes = canvas(title, (10, 7.4), 2, 3)
    limit = float(np.abs(np.asarray(sum(terms))).max())
    pictured = {title: getattr(terms, name) for name, title in _TERMS.items()}
    pictured["sum: the score"] = sum(terms)
    pictured["position - position, W = 1"] = score_terms(content, code, unit, unit)[3]
    numbers = []
    for axis, (title, values) in zip(axes.flat, pictured.items(), strict=True):
        own = None if values is not pictured["position - position, W = 1"] else "p_m . p_n"
        bounds = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit} if own is None else {}
        share = float(relative_share(values))
        heading = f"{title}\nrelative share {share:.3f}"
        image = heat_map(axis, values, heading, "n", "m", bar=own, **bounds)
        if own is None:
            last = image
        numbers.append(Number("sinusoidal", "relative share of the term", title, share))
    label = "part of q.k (one scale for five panels)"
    figure.colorbar(last, ax=axes, label=label, location="bottom", shrink=0.5, aspect=40)
    caption = (
        "The content term does not depend on the positions; the two mixed terms have stripes for "
        "each token or position; the position term is smooth, but not constant along diagonals. "
        "With W = 1, below on the right, it is the codes' inner product, a function of m - n only."
    )
    return Picture("scores-four-terms", figure, caption), numbers


def _by_scheme(config: PositionsConfig) -> tuple[Picture, list[Number]]:
    rng = np.random.default_rng(config.seed + 2)
    token = jnp.asarray(rng.normal(size=(1, config.model_dim)), jnp.float32)
    content = jnp.broadcast_to(token, (config.length, config.model_dim))
    kernels = _kernels(config, config.model_dim // config.num_heads)
    chosen = schemes(config)
    columns = min(len(chosen), 4)
    rows = -(-len(chosen) // columns)
    title = "Scores of one head less their mean, all tokens being the same: the effect of positions"
    figure, axes = canvas(title, (3.3 * columns + 0.6, 2.9 * rows + 0.6), rows, columns)
    numbers = []
    for axis, (name, scheme) in zip(axes.flat, chosen.items(), strict=False):
        declared = scheme.table(model_dim=config.model_dim, num_heads=config.num_heads)
        table = None if declared is None else jnp.asarray(rng.normal(size=declared[0]), jnp.float32)
        scores = position_scores(scheme, content, *kernels, table=table)
        share = float(jnp.mean(relative_share(scores)))
        numbers.append(Number(name, "relative share of the scores", "mean over heads", share))
        centred = np.asarray(scores[0] - jnp.mean(scores[0]))
        limit = max(float(np.abs(centred).max()), 1e-3)
        bounds = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
        title = f"{name}\nrelative share {share:.3f}"
        heat_map(axis, centred, title, "key", "query", bar="", **bounds)
    for axis in list(axes.flat)[len(chosen) :]:
        axis.set_axis_off()
    caption = (
        "The scores minus their mean, each on a separate scale, without a mask. Stripes along the "
        "diagonal: the scheme is relative. Without positions all scores are equal."
    )
    return Picture("scores-by-scheme", figure, caption), numbers
