"""Batches of rows of similar length."""

from itertools import combinations

import grain
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data.buckets import BucketedDataset, bucket_lengths
from jaxformer.data.tasks import Clips, LabelledClips, MaskedSounds
from jaxformer.errors import ConfigError


def cost(sizes, lengths):
    return sum(min(length for length in lengths if length >= size) for size in sizes)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4))
def test_no_lengths_pad_less(sizes, count):
    found = bucket_lengths(sizes, count)
    assert len(found) <= count
    assert found[-1] == max(sizes)
    assert list(found) == sorted(set(found))
    different = sorted(set(sizes))
    choices = (
        (*shorter, different[-1])
        for k in range(min(count, len(different)))
        for shorter in combinations(different[:-1], k)
    )
    assert cost(sizes, found) == min(cost(sizes, lengths) for lengths in choices)


class Numbers:
    """Rows of different lengths that hold their number."""

    def __init__(self, sizes):
        self.sizes = np.array(sizes)

    def __len__(self):
        return len(self.sizes)

    def read_padded(self, index, rng, length):
        assert length >= self.sizes[index]
        return {"row": np.full(length, index), "draw": rng.random()}


def dataset(sizes, batch_size=4, seed=0, buckets=3):
    lengths = bucket_lengths(sizes, buckets)
    return BucketedDataset(Numbers(sizes), batch_size, seed, grain.ReadOptions(2, 4), lengths)


SIZES = np.random.default_rng(0).integers(20, 200, size=50)


def test_an_epoch_reads_every_row_and_few_twice():
    data = dataset(SIZES)
    steps = data._per_epoch
    first, second = (
        [data.batch(step)["row"][:, 0] for step in range(start, start + steps)]
        for start in (0, steps)
    )
    for epoch in (first, second):
        counts = np.bincount(np.concatenate(epoch), minlength=50)
        assert counts.min() == 1
        assert counts.sum() < 50 + 3 * 4
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_batch_is_a_function_of_the_seed_and_the_step():
    batch = dataset(SIZES).batch(17)
    again, other = dataset(SIZES).batch(17), dataset(SIZES, seed=1).batch(17)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)
    assert not np.array_equal(batch["draw"], other["draw"])
    part = dataset(SIZES).batch(17, rows=[1, 3])
    assert np.array_equal(part["draw"], batch["draw"][[1, 3]])
    iterated = next(dataset(SIZES).iterate(17))
    assert np.array_equal(iterated["row"], batch["row"])


def test_six_lengths_leave_little_padding():
    assert dataset(SIZES, buckets=1).padding > 0.3
    many = np.random.default_rng(1).integers(20, 200, size=500)
    data = dataset(many, buckets=6)
    assert data.padding < 0.15
    assert {data.batch(step)["row"].shape[1] for step in range(60)} == set(data.lengths)


@pytest.mark.parametrize(("median", "deviation"), [(4, 0.5), (6, 0.6), (6, 0.9), (12, 0.5)])
def test_sounds_of_1_to_30_seconds_have_little_padding(median, deviation):
    seconds = np.exp(np.random.default_rng(1).normal(np.log(median), deviation, 3000))
    sizes = (seconds[(seconds >= 1) & (seconds <= 30)] * 16_000).astype(int)
    for kind in (Clips, LabelledClips, MaskedSounds):
        data = dataset(sizes, batch_size=32, buckets=kind.buckets)
        assert data.padding < 0.15
        assert len(data.lengths) <= 10


def test_rows_fit_into_the_longest_bucket():
    with pytest.raises(ConfigError, match="has 20 places: must have at least 30"):
        BucketedDataset(Numbers([10, 30]), 2, 0, grain.ReadOptions(1, 1), (10, 20))
