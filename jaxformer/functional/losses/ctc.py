"""Connectionist temporal classification: the loss, and the labels of the likeliest path."""

import jax
import jax.numpy as jnp
import optax

from jaxformer.checks import check_argument
from jaxformer.functional.arrays import assert_axes, assert_bool, assert_floating, assert_integers


def frames_needed(labels: jax.Array, lengths: jax.Array) -> jax.Array:
    """Returns how many frames an alignment of the labels has at least, int `[B]`.

    That is one for each label, and one for the blank between two equal labels.

    Args:
        labels: int `[B, U]`.
        lengths: int `[B]`, the labels of each row.
    """
    sizes = assert_axes(labels=(labels, "B U"))
    assert_axes(sizes, lengths=(lengths, "B"))
    assert_integers(labels=labels, lengths=lengths)
    real = jnp.arange(labels.shape[1])[None, 1:] < lengths[:, None]
    repeats = jnp.sum((labels[:, 1:] == labels[:, :-1]) & real, axis=1, dtype=jnp.int32)
    return lengths + repeats


def ctc_loss(
    logits: jax.Array,
    valid: jax.Array,
    labels: jax.Array,
    lengths: jax.Array,
    *,
    blank: int,
) -> tuple[jax.Array, jax.Array]:
    r"""Returns the negative log-likelihood of label sequences, summed over all alignments.

    .. math:: -\log \sum_{\pi \in \mathcal{B}^{-1}(y)} \prod_t p_{t, \pi_t}

    Args:
        logits: float `[B, T, V]`.
        valid: bool `[B, T]`, the frames of each row, which precede its padding.
        labels: int `[B, U]`; the labels of a row may be none, then all frames are blank.
        lengths: int `[B]`, the labels of each row.
        blank: The id of the blank.

    Returns:
        The losses, float32 `[B]`, and bool `[B]`: whether the row has as many frames as its labels
        need. The loss of other rows, and its gradient, is 0.

    Raises:
        AssertionError: Shapes do not fit together, or an array has the wrong dtype.
        ArgumentError: The blank is not one of the classes.

    References:
        Graves et al., 2006 (https://www.cs.toronto.edu/~graves/icml_2006.pdf).
    """
    sizes = assert_axes(logits=(logits, "B T V"), labels=(labels, "B U"))
    assert_axes(sizes, valid=(valid, "B T"), lengths=(lengths, "B"))
    assert_floating(logits=logits)
    assert_bool(valid=valid)
    assert_integers(labels=labels, lengths=lengths)
    known = 0 <= blank < sizes["V"]
    check_argument("blank", blank, known, f"from 0 to {sizes['V'] - 1}")
    real = jnp.arange(sizes["U"])[None, :] < lengths[:, None]
    frames = jnp.sum(valid, axis=1, dtype=jnp.int32)
    aligned = frames_needed(labels, lengths) <= frames
    # Rows that cannot be aligned are computed without labels, so that their gradient is finite too.
    real = real & aligned[:, None]
    losses = optax.ctc_loss(
        logits.astype(jnp.float32),
        1.0 - valid.astype(jnp.float32),
        jnp.where(real, labels, blank),
        1.0 - real.astype(jnp.float32),
        blank_id=blank,
    )
    return jnp.where(aligned, losses, 0.0), aligned


def collapsed(path: jax.Array, valid: jax.Array, *, blank: int) -> tuple[jax.Array, jax.Array]:
    """Removes repetitions and then blanks from the classes of frames.

    Args:
        path: int `[B, T]`, a class for each frame.
        valid: bool `[B, T]`, the frames of each row.
        blank: The id of the blank.

    Returns:
        The labels, int `[B, T]` with blanks at the end, and their number, int `[B]`.

    Raises:
        AssertionError: Shapes do not fit together, or an array has the wrong dtype.
    """
    sizes = assert_axes(path=(path, "B T"))
    assert_axes(sizes, valid=(valid, "B T"))
    assert_integers(path=path)
    assert_bool(valid=valid)
    before = jnp.pad(path, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    kept = (path != before) & (path != blank) & valid
    order = jnp.argsort(~kept, axis=1, stable=True)
    count = jnp.sum(kept, axis=1, dtype=jnp.int32)
    labels = jnp.take_along_axis(path, order, axis=1)
    real = jnp.arange(sizes["T"])[None, :] < count[:, None]
    return jnp.where(real, labels, blank), count
