"""Corpora in shards: built side by side, resumed after a kill, repaired, shared between runs."""

import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from corpora import documents, load_or_build, write_texts
from rich.console import Console

from jaxformer.data import (
    Bytes,
    CorpusOptions,
    DataConfig,
    Files,
    JsonLines,
    Packed,
    SentencePairs,
    TextFiles,
    TrainTokenizer,
)
from jaxformer.data.files import find
from jaxformer.data.split import Split
from jaxformer.data.text import corpus as corpus_module
from jaxformer.data.text.staging import TokenisingProgress
from jaxformer.data.tokenizers.pool import TokenizerPool
from jaxformer.errors import DataError
from jaxformer.io import scratch

SHARDS = CorpusOptions(shard_bytes=6_000, num_proc=1)
LARGE = CorpusOptions(shard_bytes=100_000)


def write(path, count=400):
    texts = [f"document {number} " + "lorem ipsum\n" * (number % 9) for number in range(count)]
    return write_texts(path, texts)


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "corpus.jsonl")


def build(source, folder, options=None, fraction=0.1):
    """The corpus of a source in bytes."""
    return load_or_build(Split(source, fraction, seed=0), Bytes(), folder, options=options)


def files(folder):
    """The contents of all files of the corpus in a folder, without hidden ones."""
    (home,) = Path(folder).glob("corpus-*")
    found = (path for path in home.rglob("*") if path.is_file())
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def test_one_shard_has_the_files_of_earlier_versions(tmp_path):
    # The digests are of what the first versions wrote for these documents.
    texts = [f"document {number}: " + "abc " * (number % 5) for number in range(30)]
    split = Split(write_texts(tmp_path / "corpus.jsonl", texts), 0.2, seed=1)
    load_or_build(split, Bytes(), tmp_path / "run")
    found = files(tmp_path / "run")
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(name.encode() + found[name])
    assert len(found) == 6
    assert digest.hexdigest() == "82c47cfb35037d712952fdb50ba1313cc2b821385802b282af33441eca9ef271"


@pytest.mark.slow
def test_any_number_of_processes_writes_the_same_bytes(source, tmp_path, monkeypatch):
    spec, split = TrainTokenizer("bpe", 300), Split(source, 0.1, seed=0)
    load_or_build(split, spec, tmp_path / "1", options=SHARDS)
    monkeypatch.setattr(corpus_module, "_BATCH_CHARACTERS", 500)
    monkeypatch.setattr(corpus_module, "_BATCHES_WITHOUT_PROCESSES", 1)
    load_or_build(split, spec, tmp_path / "3", options=dataclasses.replace(SHARDS, num_proc=3))
    assert files(tmp_path / "1") == files(tmp_path / "3")


def test_long_documents_are_tokenised_in_parts(tmp_path, monkeypatch):
    (tmp_path / "long.txt").write_text("a long line of some words\n" * 20_000)
    split = Split(TextFiles(str(tmp_path / "long.txt")), 0.1, seed=0)
    corpus = load_or_build(split, TrainTokenizer("bpe", 300), tmp_path / "run")
    expected = [corpus.tokenizer.encode(document.text) for document, _ in split]
    for stream, ids in zip((corpus.train, corpus.validation), expected, strict=True):
        np.testing.assert_array_equal(stream.tokens[1:-1], ids)
        assert stream.num_documents == 1


SCRIPT = """
import sys
from jaxformer.data import Bytes, CorpusOptions, JsonLines
from jaxformer.data.files import find
from jaxformer.data.split import Split
from jaxformer.data.text import corpus
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
corpus._BATCH_CHARACTERS = 5_000
options = CorpusOptions(shard_bytes=100_000, num_proc=int(sys.argv[3]))
split = Split(JsonLines(sys.argv[1]), 0.1, seed=0)
print("ready", flush=True)
tokenizer = load_or_train_tokenizer(sys.argv[2], Bytes(), ())
corpus.load_or_tokenise(split, tokenizer, sys.argv[2], options)
"""


def started(source, folder, num_proc=1, script=SCRIPT):
    arguments = [sys.executable, "-c", script, source.path, str(folder), str(num_proc)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def killed(source, folder, num_shards, num_proc=1):
    """Kills a build once it has some shards."""
    process = started(source, folder, num_proc)
    while len(shards_in(folder)) < num_shards:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def shards_in(folder):
    return sorted(path.name for path in Path(folder).glob(".corpus-*/shard-*"))


@pytest.mark.more
@pytest.mark.parametrize(("num_proc", "kills"), [(1, 2), (2, 1)])
@pytest.mark.quick("1-2")
def test_a_killed_build_goes_on_after_its_last_whole_shard(tmp_path, num_proc, kills):
    source, run = write(tmp_path / "corpus.jsonl", 20_000), tmp_path / "run"
    for kill in range(1, kills + 1):
        killed(source, run, 3 * kill, num_proc)
    before = shards_in(run)
    stamps = {name: os.stat(next(run.glob(f".corpus-*/{name}"))).st_mtime_ns for name in before}
    build(source, run, LARGE)
    for name, stamp in stamps.items():
        assert os.stat(next(run.glob(f"corpus-*/{name}"))).st_mtime_ns == stamp, "tokenised again"
    build(source, tmp_path / "whole", LARGE)
    assert files(run) == files(tmp_path / "whole")
    assert len(list(run.iterdir())) == 2, "nothing is left over"


@pytest.mark.slow
def test_a_process_waits_for_another_and_takes_over(tmp_path):
    source, run = write(tmp_path / "corpus.jsonl", 20_000), tmp_path / "run"
    slow = SCRIPT.replace(
        "print(", "import time; encode = Bytes().fit(()).__class__.encode_batch\n"
        "Bytes().fit(()).__class__.encode_batch = "
        "lambda self, texts: time.sleep(0.05) or encode(self, texts)\nprint(", 1
    )  # fmt: skip
    first = started(source, run, script=slow)
    while not shards_in(run):
        time.sleep(0.002)
    second = started(source, run)
    assert "waiting for another process" in second.stderr.readline()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    build(source, tmp_path / "whole", LARGE)
    assert files(run) == files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shard-00002/train.tokens.npy", "train.tokens.npy is damaged"),
        ("corpus.json", "corpus.json is damaged"),
        ("SHA256SUMS", "SHA256SUMS"),
        ("shard-00000", "shard-00000"),
    ],
)
def test_only_a_damaged_or_lost_shard_is_tokenised_again(source, tmp_path, caplog, name, words):
    build(source, tmp_path / "run", SHARDS)
    whole = files(tmp_path / "run")
    (damaged,) = tmp_path.glob(f"run/corpus-*/{name}")
    if damaged.is_dir():
        shutil.rmtree(damaged)
    else:
        damaged.write_bytes(damaged.read_bytes()[:-9] + b"123456789")
    kept = next(tmp_path.glob("run/corpus-*/shard-00001/train.tokens.npy")).stat()
    build(source, tmp_path / "run", SHARDS)
    assert words in caplog.text
    assert "tokenising" in caplog.text
    assert files(tmp_path / "run") == whole
    again = next(tmp_path.glob("run/corpus-*/shard-00001/train.tokens.npy")).stat()
    assert (again.st_ino, again.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)


@pytest.mark.more
def test_what_a_killed_build_of_other_documents_left_is_removed(tmp_path):
    source, run = write(tmp_path / "corpus.jsonl", 20_000), tmp_path / "run"
    killed(source, run, 2)
    write(tmp_path / "corpus.jsonl", 50)
    build(source, run)
    assert {path.name[:7] for path in run.iterdir()} == {"corpus-", "tokeniz"}


def test_a_large_corpus_of_one_shard_stays_one(source, tmp_path, caplog, monkeypatch):
    # Earlier versions had no shards; the rows of a run that they started keep their order.
    build(source, tmp_path / "run")
    whole = files(tmp_path / "run")
    (home,) = (tmp_path / "run").glob("corpus-*")
    (home / "train.tokens.npy").write_bytes(b"damaged")
    small = CorpusOptions(shard_bytes=6_000)
    with monkeypatch.context() as patch:
        patch.setattr(CorpusOptions, "shard_bytes", 6_000)
        build(source, tmp_path / "run", small)
    assert "train.tokens.npy is damaged" in caplog.text
    assert files(tmp_path / "run") == whole


@pytest.mark.more
def test_documents_that_changed_unnoticed_are_refused(tmp_path, monkeypatch):
    source, run = write(tmp_path / "corpus.jsonl", 20_000), tmp_path / "run"
    killed(source, run, 2)
    unchanged, content = source.fingerprint(), Path(source.path).read_text()
    monkeypatch.setattr(JsonLines, "fingerprint", lambda self: unchanged)
    Path(source.path).write_text(content.replace('"}\n{"text": "', " " * 13, 1))
    with pytest.raises(DataError, match=r"holds tokens of other documents.*delete the folder"):
        build(source, run, LARGE)


def test_runs_share_their_tokens_in_a_cache(source, tmp_path, monkeypatch):
    options = CorpusOptions(cache_dir=str(tmp_path / "cache"))
    one = build(source, tmp_path / "one", options)
    monkeypatch.setattr(JsonLines, "documents", None)
    other = build(source, tmp_path / "other", options)
    np.testing.assert_array_equal(one.train.tokens, other.train.tokens)
    homes = [next((tmp_path / run).glob("corpus-*")) for run in ("cache", "one", "other")]
    assert len({home.resolve() for home in homes}) == 1
    assert corpus_module.load_corpus(tmp_path / "other").train.num_documents > 0
    # Without the option the link is followed; with it, a run's own tokens are used.
    build(source, tmp_path / "other")
    assert homes[2].is_symlink()
    homes[2].unlink()
    homes[0].rename(homes[2])
    build(source, tmp_path / "other", options)
    assert not homes[2].is_symlink()
    assert not homes[0].exists()


@pytest.mark.parametrize("sampled", [False, True])
def test_folders_that_look_alike_do_not_share_their_tokens(tmp_path, monkeypatch, sampled):
    """Archives and package managers give all files one time."""
    if sampled:
        monkeypatch.setattr(find, "_WHOLE", 0)
    options = CorpusOptions(cache_dir=str(tmp_path / "cache"))
    for name, text in (("one", "a" * 99), ("two", "b" * 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(text)
        os.utime(tmp_path / name / "text.txt", ns=(10**18, 10**18))
        corpus = build(Files(str(tmp_path / name)), tmp_path / f"run_{name}", options, fraction=0)
        (train,) = documents(corpus.train, corpus.tokenizer)
        assert len(train) > 9
        assert text.startswith(train)


def test_a_file_that_was_touched_or_moved_is_not_tokenised_again(source, tmp_path, monkeypatch):
    build(source, tmp_path / "run")
    moved = tmp_path / "elsewhere" / "corpus.jsonl"
    moved.parent.mkdir()
    shutil.copyfile(source.path, moved)
    os.utime(source.path, ns=(1, 1))
    monkeypatch.setattr(JsonLines, "documents", None)
    for path in (source.path, str(moved)):
        build(JsonLines(path), tmp_path / "run")


def test_tokens_of_an_earlier_version_are_found_by_the_time_of_their_files(
    source, tmp_path, caplog, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(JsonLines, "fingerprint", JsonLines.former_fingerprint)
        build(source, tmp_path / "run", SHARDS)
    (home,) = (tmp_path / "run").glob("corpus-*")
    build(source, tmp_path / "run", SHARDS)
    assert [*(tmp_path / "run").glob("corpus-*")] == [home]
    assert not caplog.records
    # Its time tells no more which documents it was made of; the tokens are the same.
    os.utime(source.path, ns=(1, 1))
    build(source, tmp_path / "run", SHARDS)
    assert "again" in caplog.text
    assert "order" not in caplog.text


def test_text_that_was_edited_under_the_same_size_and_time_is_tokenised_again(tmp_path, caplog):
    path = tmp_path / "text.txt"
    for text in ("one two three", "one TWO three"):
        path.write_text(text)
        os.utime(path, ns=(1, 1))
        corpus = build(Files(str(path)), tmp_path / "run", fraction=0)
        (train,) = documents(corpus.train, corpus.tokenizer)
        assert len(train) > 9
        assert text.startswith(train)
    assert "order" in caplog.text


@pytest.mark.parametrize("fields", [{}, {"packing": Packed()}, {"objective": SentencePairs()}])
def test_rows_of_a_sharded_corpus(source, tmp_path, fields, monkeypatch):
    monkeypatch.setattr(scratch, "_LARGE", 1)
    config = DataConfig(
        source=source, tokenizer=Bytes(), sequence_length=24, batch_size=5, corpus=SHARDS, **fields
    )
    data = config.prepare(tmp_path / "run")
    assert len(data.train.examples.sources) > 3
    steps = -(-data.train.num_rows // 5)
    batches = [data.train.batch(step) for step in range(steps)]
    assert all(batch["inputs"].shape == (5, 24) for batch in batches)
    if "objective" not in fields:
        rows = range(data.train.num_rows)
        counted = Counter()
        for batch in (data.train.batch(n // 5, [n % 5]) for n in rows):
            counted.update(batch["targets"][batch["weights"] > 0].tolist())
        shards = [examples.stream for examples in data.train.examples.sources]
        expected = Counter(t for shard in shards for t in shard.tokens[1:].tolist())
        assert counted == expected


def test_a_shard_too_small_for_pairs_is_left_out(tmp_path):
    # The last shard has one document, which has no other to be paired with.
    texts = [f"{n} some words of text" for n in range(21)]
    source = write_texts(tmp_path / "corpus.jsonl", texts)
    config = DataConfig(
        source=source,
        validation=source,
        tokenizer=Bytes(),
        sequence_length=16,
        objective=SentencePairs(),
        corpus=CorpusOptions(shard_bytes=230),
    )
    data = config.prepare(tmp_path / "run")
    assert len(data.train.examples.sources) == 2


def test_a_process_that_dies_is_named(tmp_path):
    with TokenizerPool(Bytes().fit(()), 2) as pool:
        for process in pool._processes:
            process.kill()
        with pytest.raises(
            DataError, match=r"ended with status -9: .*lower data\.corpus\.num_proc"
        ):
            list(pool.map([["a"]], lambda batch: batch))


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_has_documents_tokens_speed_and_time(monkeypatch, is_terminal):
    now = [100.0]
    monkeypatch.setattr("jaxformer.data.text.staging.time.monotonic", lambda: now[0])
    console = Console(file=StringIO(), force_terminal=is_terminal, width=80)
    with TokenisingProgress(100_000_000, console) as progress:
        progress.skip(10_000_000)
        progress.add(10, 1_000, 5_000)
        assert not console.file.getvalue(), "a moment is not worth a line"
        now[0] += 5
        progress.add(1_234, 2_500_000, 9_995_000)
        now[0] += 5
    text = console.file.getvalue()
    assert "1,244 documents  2.5M tokens  2.0 MB/s  eta 0:00:40" in text
    assert "tokenised 1,244 documents  2.5M tokens  1.0 MB/s in 0:00:10" in text
    assert all(len(line) <= 80 for line in text.splitlines() if not is_terminal)


def test_no_progress_is_shown_of_a_small_corpus(source, tmp_path, capsys):
    build(source, tmp_path / "run")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
