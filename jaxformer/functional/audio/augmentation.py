"""SpecAugment, and the masked spans of wav2vec2, which are drawn from an explicit key."""

import jax
import jax.numpy as jnp

from jaxformer.checks import PROBABILITY, at_least
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import assert_axes, assert_floating, assert_keys, static
from jaxformer.functional.audio.waveforms import valid_positions


def span_mask(
    key: jax.Array,
    array: jax.Array,
    lengths: jax.Array | None = None,
    *,
    probability: float,
    span: int,
    min_spans: int,
) -> jax.Array:
    r"""Draws spans of equal length that may overlap.

    Of a row with :math:`L_b` positions, :math:`n_b = \lfloor p L_b / s + u_b \rfloor` different
    starts are drawn from 0 to :math:`L_b - s`, with :math:`u_b` between 0 and 1: at least
    `min_spans`, and at most as many as there are starts, or :math:`T / s`.

    Args:
        key: Random key.
        array: `[B, T, ...]`, of which only the shape is read.
        lengths: int `[B]`, the positions of each row; None: all.
        probability: p, the share that is covered if no spans overlap.
        span: s, the positions of a span, at most T.
        min_spans: The minimum number of spans of each row.

    Returns:
        bool `[B, T]`, True where a span lies.

    Raises:
        AssertionError: The lengths are not an integer for each row.
        ArgumentError: The key or a number is invalid, or a span is longer than T.

    References:
        Baevski et al., wav2vec 2.0, 2020 (https://arxiv.org/abs/2006.11477), section 3.1, and
        `_compute_mask_indices` of transformers.
    """
    assert_keys(key=key)
    probability = static("probability", probability, PROBABILITY)
    span, min_spans = static("span", span, at_least(1)), static("min_spans", min_spans, at_least(0))
    batch, length = array.shape[:2]
    if span > length:
        raise ArgumentError(f"span = {span}: must be at most {length}, the positions of a row")
    length_B = jnp.sum(valid_positions(lengths, array), axis=1)
    rounding, order = jax.random.split(key)
    count_B = probability * length_B / span + jax.random.uniform(rounding, (batch,))
    starts_B = jnp.maximum(length_B - span + 1, 0)
    most_B = jnp.minimum(starts_B, length // span)
    count_B = jnp.minimum(jnp.maximum(count_B.astype(jnp.int32), min_spans), most_B)
    score_BT = jax.random.uniform(order, (batch, length))
    possible_BT = jnp.arange(length)[None, :] < starts_B[:, None]
    rank_BT = jnp.argsort(jnp.argsort(jnp.where(possible_BT, score_BT, 2), axis=1), axis=1)
    begun_BT = jnp.cumsum(rank_BT < count_B[:, None], axis=1)
    ended_BT = jnp.pad(begun_BT, ((0, 0), (span, 0)))[:, :length]
    return begun_BT > ended_BT


def spec_augment(
    key: jax.Array,
    features: jax.Array,
    lengths: jax.Array | None = None,
    *,
    num_time_masks: int,
    time_width: int,
    max_time_share: float,
    num_feature_masks: int,
    feature_width: int,
) -> jax.Array:
    r"""Sets stripes of a spectrogram to zero: frames, and frequencies.

    Each stripe has a width :math:`w \sim U\{0, \dots, W\}` and a start
    :math:`s \sim U\{0, \dots, L - w\}`. Stripes of frames have :math:`W = \min(W_t, p L_b)`.

    Args:
        key: Random key.
        features: `[B, T, M]`.
        lengths: int `[B]`, the frames of each row; None: all.
        num_time_masks: Stripes of frames in each row.
        time_width: W_t, the maximum number of frames of a stripe.
        max_time_share: p, the largest share of the frames of a row that one stripe has.
        num_feature_masks: Stripes of frequencies in each row.
        feature_width: The maximum number of frequencies of a stripe, at most M.

    Returns:
        `[B, T, M]`.

    Raises:
        AssertionError: An array has the wrong axes or dtype.
        ArgumentError: The key or a number is invalid.

    References:
        Park et al., SpecAugment, 2019 (https://arxiv.org/abs/1904.08779), section 2, without time
        warping. Its policy LD: 2 stripes of at most 27 frequencies, 2 of at most 100 frames.
    """
    sizes = assert_axes(features=(features, "B T M"))
    assert_floating(features=features)
    assert_keys(key=key)
    times = static("num_time_masks", num_time_masks, at_least(0))
    time_width = static("time_width", time_width, at_least(0))
    bands = static("num_feature_masks", num_feature_masks, at_least(0))
    feature_width = static("feature_width", feature_width, at_least(0))
    share = static("max_time_share", max_time_share, PROBABILITY)
    if feature_width > sizes["M"]:
        raise ArgumentError(f"feature_width = {feature_width}: must be at most {sizes['M']}")
    length_B = jnp.sum(valid_positions(lengths, features), axis=1)
    widest_B = jnp.minimum(time_width, (share * length_B).astype(jnp.int32))
    first, second = jax.random.split(key)
    frames_BT = _stripes(first, times, widest_B, length_B, sizes["T"])
    width_B, bins_B = (jnp.full_like(length_B, size) for size in (feature_width, sizes["M"]))
    bands_BM = _stripes(second, bands, width_B, bins_B, sizes["M"])
    hidden_BTM = frames_BT[:, :, None] | bands_BM[:, None, :]
    return jnp.where(hidden_BTM, jnp.zeros((), features.dtype), features)


def _stripes(
    key: jax.Array, count: int, widest_B: jax.Array, length_B: jax.Array, size: int
) -> jax.Array:
    """Returns bool `[B, size]`, True within one of `count` stripes of each row."""
    widths, starts = jax.random.split(key)
    shape = (len(length_B), count)
    width_BC = jax.random.randint(widths, shape, 0, widest_B[:, None] + 1)
    start_BC = jax.random.randint(starts, shape, 0, length_B[:, None] - width_BC + 1)
    place_BCT = jnp.arange(size)[None, None, :]
    inside_BCT = (place_BCT >= start_BC[..., None]) & (place_BCT < (start_BC + width_BC)[..., None])
    return jnp.any(inside_BCT, axis=1)
