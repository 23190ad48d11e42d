import dataclasses
from collections import Counter

import numpy as np
import pytest
from corpora import write_texts
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import Bytes, DataConfig, JsonLines, Packed, RowObjective, TextFiles
from jaxformer.errors import ConfigError, DataError

PACKINGS = {"joined": DataConfig().packing, "packed": Packed()}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    texts = [f"<{number}> " + "abcdefghij" * (number % 7) for number in range(60)]
    source = write_texts(file, texts)
    return DataConfig(
        source=source,
        tokenizer=Bytes(),
        sequence_length=24,
        batch_size=5,
        seed=3,
        validation_fraction=0.3,
    )


@pytest.fixture(scope="module", params=PACKINGS)
def datasets(request, config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return dataclasses.replace(config, packing=PACKINGS[request.param]).prepare(folder)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for key in first:
        assert first[key].dtype == second[key].dtype
        np.testing.assert_array_equal(first[key], second[key])


def targets(batches):
    """How often each token is counted as a target."""
    return Counter(t for batch in batches for t in batch["targets"][batch["weights"] > 0].tolist())


def test_the_seed_leaves_the_validation_rows_alone(config, tmp_path):
    one, other = (
        dataclasses.replace(config, seed=seed).prepare(tmp_path).validation for seed in (0, 1)
    )
    for first, second in zip(one.epoch(), other.epoch(), strict=True):
        assert_same(first, second)


def test_iteration_goes_on_without_end_and_can_be_closed(datasets):
    iterator = datasets.train.iterate(10**9, rows=[3, 1])
    assert_same(next(iterator), datasets.train.batch(10**9, rows=[3, 1]))
    iterator.close()
    assert list(datasets.train.iterate(5, stop_step=5)) == []


@given(hosts=st.permutations(range(5)), cuts=st.lists(st.integers(1, 4), max_size=3))
def test_hosts_read_together_what_one_would(datasets, hosts, cuts):
    parts = [part for part in np.split(np.array(hosts), sorted(cuts)) if len(part)]
    for step in (0, 4):
        whole = datasets.train.batch(step)
        for part in parts:
            found = datasets.train.batch(step, rows=part)
            assert_same(found, {key: value[part] for key, value in whole.items()})


@pytest.mark.parametrize("batch_size", [None, 1, 4, 1000])
def test_an_evaluation_counts_every_token_once(datasets, batch_size):
    validation = datasets.validation
    size = batch_size or 5
    batches = list(validation.epoch(batch_size))
    assert len(batches) == -(-validation.num_rows // size)
    numbers = np.concatenate([batch.pop("row") for batch in batches])
    filling = len(numbers) - validation.num_rows
    assert numbers.tolist() == [*range(validation.num_rows), *[-1] * filling]
    assert all(value.shape == (size, 24) for batch in batches for value in batch.values())
    assert targets(batches) == Counter(validation.examples.stream.tokens[1:].tolist())
    filled = np.concatenate([batch["weights"].any(axis=1) for batch in batches])
    assert filled.sum() == validation.num_rows, "padding comes last, in rows of weight 0"
    assert filled[: validation.num_rows].all()


def test_evaluations_are_the_same_on_any_number_of_hosts(datasets):
    whole = list(datasets.validation.epoch(4))
    parts = [list(datasets.validation.epoch(4, rows=rows)) for rows in ([0, 3], [1], [2])]
    for batch, *found in zip(whole, *parts, strict=True):
        joined = {key: np.concatenate([part[key] for part in found]) for key in batch}
        assert_same(joined, {key: value[[0, 3, 1, 2]] for key, value in batch.items()})


def test_a_limited_evaluation_is_spread_over_the_rows(datasets):
    validation = datasets.validation
    rows = [row for batch in validation.epoch(1) for row in batch["inputs"]]
    batches = list(validation.epoch(2, max_batches=2))
    assert len(batches) == 2
    expected = [rows[number * len(rows) // 4] for number in range(4)]
    np.testing.assert_array_equal(np.concatenate([b["inputs"] for b in batches]), expected)
    everything = list(validation.epoch(2, max_batches=1000))
    assert targets(everything) == targets(validation.epoch(2))


@dataclasses.dataclass(frozen=True)
class Noise(RowObjective):
    def bind(self, tokenizer, sequence_length):
        return lambda row, rng: {"inputs": row.tokens, "noise": rng.integers(1 << 30, size=4)}


def test_an_objectives_choices_belong_to_the_row(config, tmp_path):
    train = dataclasses.replace(config, objective=Noise()).prepare(tmp_path).train
    batches = [batch["noise"] for batch in train.iterate(stop_step=2 * train.num_rows)]
    assert len(np.unique(np.concatenate(batches), axis=0)) == 2 * train.num_rows * 5
    np.testing.assert_array_equal(train.batch(9)["noise"], batches[9])
    np.testing.assert_array_equal(train.batch(9, [3])["noise"], batches[9][[3]])


def test_an_error_in_a_thread_reaches_the_loop(config, tmp_path, monkeypatch):
    train = config.prepare(tmp_path).train
    monkeypatch.setattr(train.examples, "read", lambda index, rng: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(train.iterate())


def test_rows_outside_the_batch_are_refused(datasets):
    for rows in ([5], [-1], []):
        with pytest.raises(ConfigError, match="rows must be within a batch of 5"):
            datasets.train.batch(0, rows)


def test_a_corpus_shorter_than_a_sequence_says_by_how_much(tmp_path):
    (tmp_path / "short.txt").write_text("ten bytes!")
    config = DataConfig(TextFiles(str(tmp_path)), Bytes(), validation_fraction=0.2)
    with pytest.raises(
        DataError,
        match=r"10 tokens, but sequence_length=256 needs 257; give more text",
    ):
        config.prepare(tmp_path / "run")
    datasets = dataclasses.replace(config, sequence_length=9).prepare(tmp_path / "run")
    assert datasets.train.num_rows == 1
    assert datasets.tokenizer.decode(datasets.train.batch(0)["targets"][0]) == "ten byte"
    assert datasets.validation.batch(0)["weights"].sum() == config.batch_size * 3


def test_separate_validation_documents(config, tmp_path):
    texts = ["one", "", "zwei und drei", "ä"]
    (tmp_path / "own").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / f"own/{number}.txt").write_text(text, encoding="utf-8")
    own = dataclasses.replace(config, validation=TextFiles(str(tmp_path / "own")))
    data = own.prepare(tmp_path / "run")
    read = list(config.source.documents())
    assert data.train.examples.stream.num_bytes == sum(len(d.text.encode()) for d in read)
    expected = Counter("".join(texts).encode())
    expected[data.tokenizer.end_of_text_id] = 3
    assert targets(data.validation.epoch()) == expected
    assert data.tokens_per_byte == expected.total() / len("".join(texts).encode())
    # An evaluation gets the same, whatever has become of the training documents.
    moved = dataclasses.replace(own, source=JsonLines("nowhere"))
    again = moved.prepare_validation(tmp_path / "run")
    assert again.train is None
    for first, second in zip(data.validation.epoch(), again.validation.epoch(), strict=True):
        assert_same(first, second)
    assert again.tokens_per_byte == data.tokens_per_byte


def test_an_evaluation_reads_what_the_run_has_kept(config, tmp_path):
    data = config.prepare(tmp_path / "run")
    moved = dataclasses.replace(config, source=JsonLines("nowhere"))
    again = moved.prepare_validation(tmp_path / "run")
    for first, second in zip(data.validation.epoch(), again.validation.epoch(), strict=True):
        assert_same(first, second)
    dataclasses.replace(config, split_seed=1).prepare(tmp_path / "run")
    with pytest.raises(DataError, match="nowhere does not exist"):
        moved.prepare_validation(tmp_path / "run")
