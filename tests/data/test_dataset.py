"""The order of rows: another permutation in every epoch, a function of (seed, step)."""

import grain
import numpy as np
import pytest
from corpora import Numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Dataset


def order(count, seed, epochs, batch_size=1):
    """`[epochs, count]`: the rows that training reads, batch by batch."""
    dataset = Dataset(Numbers(0, count), batch_size, seed, grain.ReadOptions())
    steps = -(-epochs * count // batch_size)
    indices = [index for step in range(steps) for _, index in dataset.batch(step)["row"]]
    return np.array(indices[: epochs * count]).reshape(epochs, count)


@given(count=st.integers(1, 40), seed=st.integers(0, 2**40), batch_size=st.integers(1, 50))
def test_every_epoch_reads_every_row_once(count, seed, batch_size):
    epochs = order(count, seed, 3, batch_size)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(count), (3, 1)))


@given(seed=st.integers(0, 2**40))
def test_every_epoch_and_seed_has_its_own_order(seed):
    orders = {tuple(epoch) for epoch in order(50, seed, 4)}
    assert len(orders | {tuple(range(50))}) == 5
    assert tuple(order(50, seed + 4, 1)[0]) not in orders


@pytest.mark.more
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1), batch_size=st.integers(1, 50))
def test_the_order_is_that_of_grains_shuffle_whatever_the_size_of_a_batch(seed, batch_size):
    shuffled = grain.MapDataset.range(30).shuffle(seed=seed).repeat(2)
    assert [shuffled[i] for i in range(60)] == order(30, seed, 2, batch_size).ravel().tolist()
