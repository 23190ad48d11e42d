"""Biases on the scores: ALiBi's slopes and T5's buckets, as matrices."""

import jax.numpy as jnp
import numpy as np

from jaxformer.functional import alibi_bias, alibi_slopes, t5_bias
from jaxformer.lab.drawing import COLOURS, canvas, frame, heat_map
from jaxformer.lab.positions.compiled import t5_bucket
from jaxformer.lab.positions.section import Number, Picture, PositionsConfig, Section

_LAST = "last bucket starts at distance"


def alibi_section(config: PositionsConfig) -> Section:
    """Describes ALiBi: the slopes, and the penalties of some heads."""
    slopes = alibi_slopes(config.num_heads)
    positions = jnp.arange(config.length)[None]
    bias = np.array(alibi_bias(slopes, positions, positions)[0])
    bias[:, np.triu(np.ones(bias.shape[1:], bool), 1)] = np.nan
    shown = sorted({0, config.num_heads // 2, config.num_heads - 1})
    title = f"ALiBi: slopes of {config.num_heads} heads, and penalties of some (blank: later keys)"
    figure, ((bars, *maps),) = canvas(title, (11, 3.4), 1, 1 + len(shown))
    bars.bar(np.arange(config.num_heads), slopes, color=COLOURS[0])
    bars.set_yscale("log", base=2)
    bars.locator_params(axis="x", integer=True)
    frame(bars, "Slopes", "head", "slope")
    for axis, head in zip(maps, shown, strict=True):
        title = f"Head {head}: slope {float(slopes[head]):.4g}"
        last = "added to the score" if head == shown[-1] else ""
        heat_map(axis, bias[head], title, "key position", "", bar=last, cmap="magma")
    maps[0].set_ylabel("query position")
    caption = (
        "Each head subtracts its slope times the distance (the scales differ). Steep heads only "
        "see a few tokens, flat ones see far."
    )
    text = (
        "Nothing is added to the embeddings: each score is reduced by slope x distance. The "
        "slopes are a geometric sequence from 2^(-8/N) to 2^-8 and are not learned. Beyond the "
        "training length, only the penalties get larger.",
    )
    heads = list(enumerate(slopes.tolist()))
    numbers = [Number("alibi", "slope", f"head {n} of {config.num_heads}", s) for n, s in heads]
    reach = "distance at which weights fall by e"
    numbers += [Number("alibi", reach, f"head {head}", 1 / slope) for head, slope in heads]
    return Section("ALiBi", text, [Picture("alibi", figure, caption)], numbers)


def t5_section(config: PositionsConfig) -> Section:
    """Describes T5's distance buckets as curves and matrices, with a random bias table."""
    places = np.arange(config.length)
    relative = jnp.asarray(places[None, :] - places[:, None])
    sizes = {"num_buckets": config.num_buckets, "max_distance": config.max_distance}
    numbers = _t5_numbers(config, sizes)
    starts = " and ".join(
        f"{number.value} ({number.setting})" for number in numbers if number.quantity == _LAST
    )
    title = f"T5: {config.num_buckets} buckets of distances; the last starts at {starts}"
    figure, (maps, (curves, example)) = canvas(title, (10, 6.6), 2, 2)
    kinds = {"encoder (both directions)": True, "decoder (earlier keys)": False}
    options = {"cmap": "viridis", "vmin": 0, "vmax": config.num_buckets - 1}
    for axis, (name, both) in zip(maps, kinds.items(), strict=True):
        bucket = t5_bucket(relative, bidirectional=both, **sizes)
        image = heat_map(axis, bucket, name, "key position", "query position", **options)
    figure.colorbar(image, ax=maps, label="bucket")
    reach = np.arange(-2 * config.max_distance, 2 * config.max_distance + 1)
    for colour, (name, both) in zip(COLOURS, kinds.items(), strict=False):
        bucket = t5_bucket(jnp.asarray(reach), bidirectional=both, **sizes)
        curves.plot(reach, bucket, color=colour, label=name, linewidth=1.2)
    frame(curves, "Bucket of a distance", "key position - query position", "bucket")
    curves.legend(fontsize=8)
    table = np.random.default_rng(config.seed).normal(size=(config.num_buckets, 1))
    positions = jnp.asarray(places)[None]
    options = {"bidirectional": True, "max_distance": config.max_distance}
    bias = t5_bias(jnp.asarray(table, jnp.float32), positions, positions, **options)
    title = "A bias from a random table (one head)"
    heat_map(example, bias[0, 0], title, "key position", "query position", bar="bias")
    caption = (
        "Near distances have a bucket each; further ones share logarithmically wider buckets, so "
        "that the stripes become broader away from the diagonal. In an encoder one half of the "
        "buckets is for later keys; in a decoder later keys are masked and share bucket 0."
    )
    text = (
        "A learned number per head and bucket of the distance is added to the score. All distances "
        "beyond the last bucket's start share it, so the model runs at any length but does not "
        "distinguish far distances.",
    )
    return Section("T5", text, [Picture("t5", figure, caption)], numbers)


def _t5_numbers(config: PositionsConfig, sizes: dict[str, int]) -> list[Number]:
    distances = np.arange(config.max_distance + 2)
    numbers = []
    for name, both in (("encoder", True), ("decoder", False)):
        bucket = np.asarray(t5_bucket(jnp.asarray(-distances), bidirectional=both, **sizes))
        _, starts, counts = np.unique(bucket, return_index=True, return_counts=True)
        alone = counts == 1
        exact = int(alone.argmin()) if not alone.all() else len(alone)
        numbers += [
            Number("t5", "distances with a separate bucket", name, exact),
            Number("t5", "buckets used for earlier keys", name, len(starts)),
            Number("t5", _LAST, name, int(starts[-1])),
        ]
    return numbers
