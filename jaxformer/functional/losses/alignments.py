"""Alignments of frames with labels: connectionist temporal classification."""

import jax
import jax.numpy as jnp

from jaxformer.functional.arrays import assert_axes, assert_bool, assert_integers


def frames_needed(labels: jax.Array, lengths: jax.Array) -> jax.Array:
    """Returns the minimum number of frames of an alignment of labels `[B, U]`, int `[B]`.

    That is one for each label of a row, and one for the blank between two equal labels.
    """
    sizes = assert_axes(labels=(labels, "B U"))
    assert_axes(sizes, lengths=(lengths, "B"))
    assert_integers(labels=labels, lengths=lengths)
    real = jnp.arange(labels.shape[1])[None, 1:] < lengths[:, None]
    repeats = jnp.sum((labels[:, 1:] == labels[:, :-1]) & real, axis=1, dtype=jnp.int32)
    return lengths + repeats


def collapsed(path: jax.Array, valid: jax.Array, *, blank: int) -> tuple[jax.Array, jax.Array]:
    """Removes repetitions and then blanks from the classes of frames.

    Args:
        path: int `[B, T]`, a class for each frame.
        valid: bool `[B, T]`, the frames of each row.
        blank: The id of the blank.

    Returns:
        The labels, int `[B, T]` with blanks at the end, and their number, int `[B]`.
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
