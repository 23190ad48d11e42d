import json
import multiprocessing

import numpy as np
import pytest
from corpora import documents, load_or_build, write_texts

from jaxformer.data import Bytes, CorpusOptions, JsonLines, TrainTokenizer
from jaxformer.data.split import Split
from jaxformer.data.text import corpus as corpus_module
from jaxformer.errors import DataError

TEXTS = [f"document number {number}\n" * (number % 5 + 1) for number in range(40)]


@pytest.fixture
def source(tmp_path):
    return write_texts(tmp_path / "corpus.jsonl", TEXTS)


@pytest.mark.parametrize("shard_bytes", [300, 10**9])
@pytest.mark.parametrize("spec", [Bytes(), TrainTokenizer("bpe", 300)], ids=str)
def test_every_document_is_kept_once_and_in_order_on_its_side(source, tmp_path, spec, shard_bytes):
    split = Split(source, 0.2, seed=1)
    options = CorpusOptions(shard_bytes=shard_bytes, num_proc=1)
    corpus = load_or_build(split, spec, tmp_path / "run", options=options)
    for side, held_out in ((corpus.train, False), (corpus.validation, True)):
        expected = [document.text for document, held in split if held is held_out]
        assert documents(side, corpus.tokenizer) == expected
        assert side.num_documents == len(expected)
        assert side.num_bytes == sum(len(text.encode()) for text in expected)
        for shard in side.shards:
            assert shard.offsets[-1] == len(shard.tokens) - 1 == shard.num_targets
            assert shard.tokens.dtype == np.uint16
            ends = np.flatnonzero(shard.tokens == corpus.tokenizer.end_of_text_id)
            np.testing.assert_array_equal(ends, shard.offsets)
        assert side.num_targets == sum(shard.num_targets for shard in side.shards)
    assert corpus.train.num_documents + corpus.validation.num_documents == len(TEXTS)
    (file,) = tmp_path.glob("run/corpus-*/corpus.json")
    record = json.loads(file.read_text())
    assert record["train"]["documents"] == corpus.train.num_documents
    assert len(corpus.train.shards) == record.get("shards", 1)
    assert (len(corpus.train.shards) > 3) == (shard_bytes == 300)


def test_the_tokenizer_learns_from_the_training_side_alone(source, tmp_path):
    split = Split(source, 0.2, seed=1)
    spec = TrainTokenizer("bpe", 300)
    corpus = load_or_build(split, spec, tmp_path / "run")
    training = [document.text for document, held in split if not held]
    assert corpus.tokenizer.fingerprint() == spec.fit(training).fingerprint()


@pytest.mark.more
def test_batches_of_documents_change_nothing(source, tmp_path, monkeypatch):
    split = Split(source, 0.2, seed=1)
    one = load_or_build(split, Bytes(), tmp_path / "one")
    monkeypatch.setattr(corpus_module, "_BATCH_CHARACTERS", 50)
    other = load_or_build(split, Bytes(), tmp_path / "other")
    np.testing.assert_array_equal(one.train.tokens, other.train.tokens)
    np.testing.assert_array_equal(one.validation.offsets, other.validation.offsets)


def test_large_vocabularies_get_wider_tokens(source, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.data.tokenizers.specs.ByteTokenizer.vocab_size", (1 << 16) + 1)
    corpus = load_or_build(Split(source, 0.2, seed=0), Bytes(), tmp_path / "run")
    assert corpus.train.tokens.dtype == np.uint32


def test_a_second_start_reads_no_document(source, tmp_path, monkeypatch):
    split = Split(source, 0.2, seed=1)
    first = load_or_build(split, TrainTokenizer("bpe", 300), tmp_path / "run")
    monkeypatch.setattr(JsonLines, "documents", None)
    second = load_or_build(split, TrainTokenizer("bpe", 300), tmp_path / "run")
    assert isinstance(second.train.tokens, np.memmap)
    np.testing.assert_array_equal(first.train.tokens, second.train.tokens)


def test_changed_documents_are_tokenised_again_with_the_same_tokenizer(source, tmp_path, caplog):
    split, spec = Split(source, 0.2, seed=1), TrainTokenizer("bpe", 300)
    before = load_or_build(split, spec, tmp_path / "run")
    with open(source.path, "a") as file:
        file.write(json.dumps({"text": "something else entirely, " * 50}) + "\n")
    after = load_or_build(split, spec, tmp_path / "run")
    assert "tokenising again" in caplog.text
    num_documents = after.train.num_documents + after.validation.num_documents
    assert num_documents == len(TEXTS) + 1
    assert after.tokenizer.fingerprint() == before.tokenizer.fingerprint()


def test_another_split_is_another_corpus(source, tmp_path):
    sizes = {
        load_or_build(split, Bytes(), tmp_path / "run").validation.num_documents
        for split in (Split(source, 0.2, seed=0), Split(source, 0.6, seed=0))
    }
    assert len(sizes) == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            TrainTokenizer("bpe", 300),
            r"holds the tokenizer Bytes\(\).*, but TrainTokenizer.*300",
        ),
        (Bytes(), r"Bytes\(\) with special tokens \(mask\), but Bytes\(\) is"),
    ],
    ids=["tokenizer", "special tokens"],
)
def test_another_tokenizer_in_the_same_folder_is_refused(source, tmp_path, spec, message):
    split = Split(source, 0.2, seed=0)
    before = load_or_build(split, Bytes(), tmp_path / "run", ["mask"])
    assert before.tokenizer.vocab_size == 259
    again = load_or_build(split, Bytes(), tmp_path / "run", ["mask"])
    assert again.tokenizer.fingerprint() == before.tokenizer.fingerprint()
    with pytest.raises(DataError, match=message):
        load_or_build(split, spec, tmp_path / "run")


def test_a_folder_in_the_way_is_named(source, tmp_path):
    (tmp_path / "run" / "tokenizer").mkdir(parents=True)
    (tmp_path / "run" / "tokenizer" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"tokenizer is in the way: it lacks the spec\.json"):
        load_or_build(Split(source, 0.2, seed=0), Bytes(), tmp_path / "run")
    assert (tmp_path / "run" / "tokenizer" / "notes.txt").exists()


def _build(source, folder, barrier, results):
    barrier.wait()
    corpus = load_or_build(Split(source, 0.2, seed=0), TrainTokenizer("unigram", 300), folder)
    results.put((corpus.tokenizer.fingerprint(), np.array(corpus.train.tokens).tobytes()))


@pytest.mark.slow
def test_processes_that_race_agree(source, tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=_build, args=(source, tmp_path / "run", barrier, results))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    seen = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(seen) == 1
    assert len(list((tmp_path / "run").iterdir())) == 2
