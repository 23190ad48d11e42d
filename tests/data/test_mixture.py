"""Mixtures: the proportions, the epochs of each source, and an order that is a pure function."""

import dataclasses
import math
from collections import Counter

import grain
import numpy as np
import pytest
from corpora import Numbers, write_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.config.overrides import parse
from jaxformer.data import (
    Bytes,
    ConcatenatedExamples,
    DataConfig,
    Dataset,
    Joined,
    JsonLines,
    MixedExamples,
    Mixture,
    Packed,
    SentencePairs,
    TextFiles,
)
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import from_json, to_json

SIZES = st.lists(st.integers(10, 60), min_size=2, max_size=6)
WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=6)


def dataset_of(sizes, weights, seed=0, batch_size=4):
    sources = [Numbers(number, size) for number, size in enumerate(sizes)]
    examples = MixedExamples(sources, weights[: len(sizes)])
    return Dataset(examples, batch_size, seed, grain.ReadOptions(1, 1))


def rows(dataset, count, **options):
    steps = range(-(-count // dataset.batch_size))
    return np.concatenate([dataset.batch(step, **options)["row"] for step in steps])[:count]


@given(sizes=SIZES, weights=WEIGHTS, count=st.integers(1, 10**12))
def test_the_shares_are_those_of_the_weights_at_every_number(sizes, weights, count):
    examples = dataset_of(sizes, weights).examples
    counts = examples.counts(count)
    assert sum(counts) == count
    total = math.fsum(weights[: len(sizes)])
    for found, weight, share in zip(counts, weights, examples.weights, strict=False):
        assert share == pytest.approx(weight / total)
        assert abs(found - count * weight / total) <= 2 + 1e-12 * count


@given(weight=st.floats(0.01, 0.99), count=st.integers(1, 2000))
def test_two_sources_are_never_off_by_more_than_half_a_row(weight, count):
    found, _ = dataset_of([3, 5], [weight, 1 - weight]).examples.counts(count)
    assert abs(found - weight * count) <= 0.5 + 1e-9


def test_weights_mean_what_their_digits_say():
    counts = dataset_of([1, 1, 1], [0.7, 0.2, 0.1]).examples.counts
    for number in (10, 1_000, 10**15):
        assert counts(number) == [7 * number // 10, 2 * number // 10, number // 10]


@pytest.mark.more
@settings(max_examples=3)
@given(sizes=SIZES, weights=WEIGHTS, seed=st.integers(0, 2**40))
def test_each_source_goes_through_its_own_epochs(sizes, weights, seed):
    found = rows(dataset_of(sizes, weights, seed), 200)
    for source, size in enumerate(sizes):
        own = found[found[:, 0] == source, 1]
        for start in range(0, len(own) - size + 1, size):
            assert sorted(own[start : start + size]) == list(range(size))


@pytest.mark.more
@settings(max_examples=3)
@given(sizes=SIZES, weights=WEIGHTS, others=WEIGHTS, seed=st.integers(0, 2**40))
def test_weights_leave_the_order_within_a_source_alone(sizes, weights, others, seed):
    one, other = (rows(dataset_of(sizes, w, seed), 100) for w in (weights, others))
    for source in range(len(sizes)):
        first, second = (found[found[:, 0] == source, 1] for found in (one, other))
        shared = min(len(first), len(second))
        np.testing.assert_array_equal(first[:shared], second[:shared])


@settings(max_examples=8)
@given(sizes=SIZES, weights=WEIGHTS, seed=st.integers(0, 2**40), size=st.integers(1, 9))
def test_the_order_depends_neither_on_batches_nor_on_hosts_nor_on_the_start(
    sizes, weights, seed, size
):
    whole = rows(dataset_of(sizes, weights, seed, batch_size=1), 40)
    dataset = dataset_of(sizes, weights, seed, size)
    np.testing.assert_array_equal(rows(dataset, 40), whole)
    step = 40 // size // 2
    parts = [dataset.batch(step, rows=[row])["row"] for row in range(size)]
    np.testing.assert_array_equal(np.concatenate(parts), dataset.batch(step)["row"])
    np.testing.assert_array_equal(
        next(dataset.iterate(step, stop_step=step + 1))["row"], dataset.batch(step)["row"]
    )


def test_sources_and_seeds_have_their_own_orders():
    dataset, other = (dataset_of([50, 50], [1, 1, 1, 1, 1, 1], seed) for seed in (1, 2))
    found, again = rows(dataset, 100), rows(other, 100)
    first, second = (found[found[:, 0] == source, 1].tolist() for source in (0, 1))
    assert len({tuple(first), tuple(second), tuple(range(50)), *map(tuple, again[:, 1:])}) > 3
    assert first != second


@given(sizes=SIZES)
def test_an_evaluation_reads_every_row_of_every_source_once(sizes):
    batches = list(dataset_of(sizes, [1.0] * 6).epoch())
    found = np.concatenate([batch["row"] for batch in batches])
    assert len(found) == -(-sum(sizes) // 4) * 4
    sources = [Numbers(number, size) for number, size in enumerate(sizes)]
    joined = ConcatenatedExamples(sources)
    assert len(joined) == sum(sizes)
    places = [tuple(joined.read(i, None)["row"]) for i in range(len(joined))]
    assert places == [(s, i) for s, size in enumerate(sizes) for i in range(size)]
    assert [joined.source_of(i) for i in range(len(joined))] == [s for s, _ in places]


def test_rows_that_differ_cannot_be_mixed():
    with pytest.raises(ConfigError, match=r"sources\.1 has rows of other .*sources\.0 of row"):
        MixedExamples([Numbers(0, 3), Numbers(1, 3, "other")], [1, 1])
    with pytest.raises(ConfigError, match=r"sources\.1 has no rows"):
        MixedExamples([Numbers(0, 3), Numbers(1, 0)], [1, 1])


# Text.


def write(path, letter, count):
    texts = [f"{letter * 3}{number:03d}" for number in range(count)]
    return write_texts(path, texts)


@pytest.fixture
def sources(tmp_path):
    return write(tmp_path / "a.jsonl", "a", 60), write(tmp_path / "b.jsonl", "b", 20)


def config_of(source):
    # A document and its end-of-text fill a row.
    fields = {"sequence_length": 7, "batch_size": 5, "validation_fraction": 0.2}
    return DataConfig(source=source, tokenizer=Bytes(), packing=Packed(), **fields)


def documents(dataset, count):
    inputs = [dataset.batch(step)["inputs"] for step in range(-(-count // dataset.batch_size))]
    return [bytes(row[1:].astype(np.uint8)).decode() for row in np.concatenate(inputs)[:count]]


def test_a_mixture_of_texts(sources, tmp_path):
    data = config_of(Mixture(sources, weights=(0.25, 0.75))).prepare(tmp_path / "run")
    found = documents(data.train, 400)
    assert Counter(text[0] for text in found) == {"a": 100, "b": 300}
    held_out = [
        bytes(row[1:].astype(np.uint8)).decode()
        for batch in data.validation.epoch()
        for row in batch["inputs"][batch["row"] >= 0]
    ]
    for letter, count in (("a", 60), ("b", 20)):
        own = [text for text in found if text[0] == letter]
        held = [text for text in held_out if text[0] == letter]
        assert 0 < len(held) < count / 2
        assert len({*own, *held}) == count
        size = count - len(held)
        assert len(set(own[:size])) == size
        assert {*own}.isdisjoint(held)


def test_a_source_is_the_same_alone_and_in_a_mixture(sources, tmp_path):
    alone = config_of(sources[1]).prepare(tmp_path / "alone")
    mixed = config_of(Mixture(sources)).prepare(tmp_path / "mixed")
    assert {*documents(alone.train, 20)} == {
        text for text in documents(mixed.train, 100) if text[0] == "b"
    }


def test_a_second_start_and_other_weights_tokenise_nothing(sources, tmp_path, monkeypatch):
    config = config_of(Mixture(sources, weights=(1, 2)))
    first = documents(config.prepare(tmp_path / "run").train, 50)
    monkeypatch.setattr(JsonLines, "documents", None)
    assert documents(config.prepare(tmp_path / "run").train, 50) == first
    other = config_of(Mixture(sources, weights=(2, 1))).prepare(tmp_path / "run")
    assert Counter(text[0] for text in documents(other.train, 300)) == {"a": 200, "b": 100}


def test_validation_needs_the_run_alone(sources, tmp_path):
    config = config_of(Mixture(sources))
    whole = config.prepare(tmp_path / "run")
    for source in sources:
        (tmp_path / source.path).unlink()
    again = config.prepare_validation(tmp_path / "run")
    assert again.tokens_per_byte == whole.tokens_per_byte
    for one, other in zip(whole.validation.epoch(), again.validation.epoch(), strict=True):
        np.testing.assert_array_equal(one["inputs"], other["inputs"])


@pytest.mark.parametrize(
    ("temperature", "shares"), [(1.0, (0.75, 0.25)), (2.0, (0.634, 0.366)), (1e6, (0.5, 0.5))]
)
def test_sizes_make_the_weights_where_there_are_none(sources, temperature, shares):
    mixture = Mixture(sources, temperature=temperature)
    examples = mixture.mix([Numbers(0, 60), Numbers(1, 20)])
    assert examples.weights == pytest.approx(shares, abs=1e-3)


def test_at_temperature_one_an_epoch_reads_everything_once():
    examples = Mixture((TextFiles("a"), TextFiles("b"))).mix([Numbers(0, 7), Numbers(1, 40)])
    assert examples.counts(47) == [7, 40]
    assert examples.counts(47 * 10**6) == [7 * 10**6, 40 * 10**6]


def test_the_command_line_and_json(sources, tmp_path):
    arguments = [
        "--source", "Mixture", "--source.sources", "JsonLines", "TextFiles",
        "--source.sources.0.path", "a.jsonl", "--source.sources.1.path", "books",
        "--source.weights", "0.7", "0.3",
    ]  # fmt: skip
    config = parse(DataConfig(), arguments, "test")
    expected = Mixture((JsonLines("a.jsonl"), TextFiles("books")), weights=(0.7, 0.3))
    assert config.source == expected
    assert from_json(to_json(config), DataConfig) == config


def test_objectives_of_pairs_can_be_mixed(sources, tmp_path):
    fields = {"objective": SentencePairs(), "packing": Joined(), "sequence_length": 12}
    config = dataclasses.replace(config_of(Mixture(sources)), **fields)
    batch = config.prepare(tmp_path / "run").train.batch(0)
    assert batch["inputs"].shape == (5, 12)
