"""Alignments of frames with labels."""

from itertools import groupby, pairwise

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.functional.losses.alignments import collapsed, frames_needed

paths = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4)


@given(paths, st.integers(0, 3), st.integers(0, 6))
def test_repetitions_and_blanks_are_removed(rows, blank, length):
    path = jnp.asarray(rows)
    valid = jnp.broadcast_to(jnp.arange(6)[None, :] < length, path.shape)
    labels, counts = collapsed(path, valid, blank=blank)
    for row, found, count in zip(rows, labels, counts, strict=True):
        expected = [label for label, _ in groupby(row[:length]) if label != blank]
        assert found[:count].tolist() == expected
        assert (np.asarray(found[count:]) == blank).all()


@given(paths, st.integers(0, 6))
def test_equal_neighbours_need_a_blank_between_them(rows, length):
    labels = jnp.asarray(rows)
    lengths = jnp.full(len(rows), length)
    for row, needed in zip(rows, frames_needed(labels, lengths), strict=True):
        real = row[:length]
        assert needed == length + sum(a == b for a, b in pairwise(real))
