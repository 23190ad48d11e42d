"""Waveforms: samples `[..., S]`, cut into frames or normalised."""

import jax
import jax.numpy as jnp

from jaxformer.checks import POSITIVE, at_least
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    check_numbers,
    static,
)


def frames(waveform: jax.Array, length: int, hop: int) -> jax.Array:
    r"""Cuts waveforms into overlapping frames; samples after the last whole frame are left out.

    .. math:: y_{t i} = x_{t h + i}, \quad 0 \le i < \ell

    Args:
        waveform: `[..., S]` with S of at least `length`.
        length: Samples of a frame.
        hop: Samples from the start of a frame to the start of the next.

    Returns:
        `[..., T, length]` with T = 1 + (S - length) // hop.

    Raises:
        AssertionError: The waveform does not hold floating-point numbers.
        ArgumentError: The waveform is shorter than a frame, or a size is invalid.
    """
    assert_axes(waveform=(waveform, "... S"))
    assert_floating(waveform=waveform)
    length, hop = static("length", length, at_least(1)), static("hop", hop, at_least(1))
    samples = waveform.shape[-1]
    if samples < length:
        raise ArgumentError(
            f"waveform has {samples} samples: must have at least {length}, those of a frame; pad "
            "it with zeros"
        )
    starts = hop * jnp.arange(1 + (samples - length) // hop)
    return jnp.asarray(waveform)[..., starts[:, None] + jnp.arange(length)[None, :]]


def normalize_waveform(
    waveform: jax.Array, lengths: jax.Array | None = None, *, eps: float
) -> jax.Array:
    r"""Scales each waveform to mean 0 and variance 1, as wav2vec2 reads it.

    .. math:: y_s = \frac{x_s - \mu}{\sqrt{\sigma^2 + \epsilon}}

    Args:
        waveform: `[B, S]`.
        lengths: int `[B]`, the samples of each row; those after them do not count, and become 0.
            None: all.
        eps: Added to the variance; transformers adds 1e-7.

    Returns:
        `[B, S]`, of the waveform's dtype.

    Raises:
        AssertionError: An array has the wrong axes or dtype.
        ArgumentError: `eps` is not a positive number.

    References:
        Baevski et al., wav2vec 2.0, 2020 (https://arxiv.org/abs/2006.11477), section 2.
    """
    assert_axes(waveform=(waveform, "B S"))
    assert_floating(waveform=waveform)
    check_numbers(eps=(eps, POSITIVE))
    x_BS = jnp.asarray(waveform, jnp.promote_types(waveform.dtype, jnp.float32))
    valid_BS = valid_positions(lengths, x_BS)
    count_B1 = jnp.maximum(jnp.sum(valid_BS, axis=-1, keepdims=True, dtype=x_BS.dtype), 1)
    mean_B1 = jnp.sum(x_BS, axis=-1, keepdims=True, where=valid_BS) / count_B1
    centred_BS = jnp.where(valid_BS, x_BS - mean_B1, 0)
    variance_B1 = jnp.sum(jnp.square(centred_BS), axis=-1, keepdims=True) / count_B1
    return (centred_BS / jnp.sqrt(variance_B1 + eps)).astype(waveform.dtype)


def valid_positions(lengths: jax.Array | None, array: jax.Array) -> jax.Array:
    """Returns bool `[B, T]`: which positions of `array` `[B, T, ...]` are below `lengths` `[B]`."""
    if lengths is None:
        return jnp.ones(array.shape[:2], bool)
    assert_axes({"B": array.shape[0]}, lengths=(lengths, "B"))
    assert_integers(lengths=lengths)
    return jnp.arange(array.shape[1])[None, :] < jnp.asarray(lengths)[:, None]
