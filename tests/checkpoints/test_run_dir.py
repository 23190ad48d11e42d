"""The folder of a run: after a start that fails, and with its data in an object store."""

import numpy as np
import pytest
from tiny_models import tiny

from jaxformer.checkpoints.run_dir import kept_files, locked, open_run_folder, prepared_data
from jaxformer.config import Config
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.data.tasks.labelled_text import LabelledText
from jaxformer.data.text import corpus as corpus_module
from jaxformer.data.text.corpus import CorpusOptions
from jaxformer.data.text.files import Files
from jaxformer.errors import DataError
from jaxformer.io.paths import any_path
from jaxformer.io.remote import RemotePath
from jaxformer.io.staging import CACHE

pytest_plugins = "object_store"
CONFIG = Config(tiny())


def start_and_fail(run, folder):
    with locked(run):
        open_run_folder(run, CONFIG)
        (run / "tokenizer").mkdir()
        (run / folder).mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt


def test_a_start_that_fails_leaves_no_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start_and_fail(tmp_path / "run", "corpus-1")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [".corpus-1", "corpus-1", "source-0/corpus-1"])
def test_shards_that_a_failed_start_has_made_are_kept_for_the_next(tmp_path, name):
    run, shard = tmp_path / "run", f"{name}/shard-00000"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            start_and_fail(run, shard)
        assert [path.name for path in run.iterdir()] == [name.partition("/")[0]]
        assert (run / shard).exists()
    with locked(run):
        open_run_folder(run, CONFIG)
    assert (run / "config.json").exists()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Goes to a machine, which has its own cache."""

    def go(name):
        monkeypatch.setenv(CACHE, str(tmp_path / name))
        return tmp_path / name

    go("first")
    return go


@pytest.fixture(params=[pytest.param("bucket", marks=pytest.mark.more), "memory_bucket"])
def store(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    words = np.random.default_rng(0).integers(0, 50, (12, 60))
    for number, row in enumerate(words):
        (folder / f"{number:02d}.txt").write_text(" ".join(f"word{word}" for word in row))
    return folder


def data_of(texts, **options):
    return DataConfig(
        Files(str(texts)),
        TrainTokenizer(vocab_size=300),
        sequence_length=16,
        batch_size=2,
        validation_fraction=0.3,
        corpus=CorpusOptions(num_proc=1, **options),
    )


def first_batch(data):
    return next(data.train.iterate(0))["inputs"]


def objects(url):
    return sorted(any_path(url, "url").files())


@pytest.mark.parametrize("shard_bytes", [1 << 28, 1000], ids=["one shard", "several"])
def test_another_machine_finds_what_was_prepared(store, texts, machine, tmp_path, shard_bytes):
    run, data = any_path(f"{store}/run", "run"), data_of(texts, shard_bytes=shard_bytes)
    here = first_batch(data.prepare(tmp_path / "local"))
    np.testing.assert_array_equal(first_batch(prepared_data(data, run)), here)
    local = (path for path in (tmp_path / "local").rglob("*") if path.is_file())
    assert objects(run) == sorted(path.relative_to(tmp_path / "local").as_posix() for path in local)
    machine("second")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "_tokenise", None)  # nothing is done twice
        np.testing.assert_array_equal(first_batch(prepared_data(data, run)), here)


def test_a_machine_goes_on_with_the_shards_of_another(memory_bucket, texts, machine, monkeypatch):
    run, data = any_path(f"{memory_bucket}/run", "run"), data_of(texts, shard_bytes=1000)
    calls, encode = [], corpus_module._count

    def dies(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return encode(*arguments)

    monkeypatch.setattr(corpus_module, "_count", dies)
    with pytest.raises(KeyboardInterrupt):
        prepared_data(data, run)
    done = {name.split("/")[1] for name in objects(run) if "/shard-" in name}
    assert done == {"shard-00000", "shard-00001", "shard-00002"}
    machine("second")
    again = []
    monkeypatch.setattr(corpus_module, "_count", lambda *each: [again.append(each), encode(*each)])
    batch = first_batch(prepared_data(data, run))
    assert len(again) < len(calls) + 4
    assert not any("arriving" in name for name in objects(run))
    monkeypatch.undo()
    np.testing.assert_array_equal(batch, first_batch(data.prepare(texts.parent / "local")))


def test_a_copy_of_a_corpus_that_was_interrupted_goes_on(
    memory_bucket, texts, machine, monkeypatch
):
    run, data = any_path(f"{memory_bucket}/run", "run"), data_of(texts)
    before = first_batch(prepared_data(data, run))
    home = machine("second")
    get, calls = RemotePath.get, []

    def breaks(self, to):
        calls.append(str(self))
        if self.name == "train.tokens.npy" and calls.count(str(self)) == 1:
            raise KeyboardInterrupt
        get(self, to)

    monkeypatch.setattr(RemotePath, "get", breaks)
    with pytest.raises(KeyboardInterrupt):
        prepared_data(data, run)
    assert not list(home.glob("runs/*/run/corpus-*"))
    arrived = {name for name in calls if not name.endswith("train.tokens.npy")}
    np.testing.assert_array_equal(first_batch(prepared_data(data, run)), before)
    assert all(calls.count(name) == 1 for name in arrived)


def test_tokens_are_shared_through_a_store(memory_bucket, texts, machine, tmp_path):
    data = data_of(texts, cache_dir=f"{memory_bucket}/tokens")
    first = first_batch(data.prepare(tmp_path / "one"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "_tokenise", None)
        np.testing.assert_array_equal(first_batch(data.prepare(tmp_path / "two")), first)


def test_a_message_names_the_run_and_not_its_mirror(memory_bucket, texts, machine):
    run = any_path(f"{memory_bucket}/run", "run")
    prepared_data(data_of(texts), run)
    other = DataConfig(Files(str(texts)), TrainTokenizer(vocab_size=400), sequence_length=16)
    with pytest.raises(DataError, match=rf"^{run}/tokenizer holds the tokenizer TrainTok"):
        prepared_data(other, run)


def test_labels_and_templates_travel_too(memory_bucket, machine, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("sentence,label\n" + "".join(f"word {n},{'ab'[n % 2]}\n" for n in range(20)))
    run = any_path(f"{memory_bucket}/run", "run")
    data = LabelledText(str(rows), tokenizer=TrainTokenizer(vocab_size=300), sequence_length=16)
    prepared_data(data, run)
    assert (run / "labels.json").read_text() == '["a", "b"]\n'
    machine("second")
    kept = kept_files(run)
    assert {path.name for path in kept.iterdir()} >= {"labels.json", "tokenizer"}
    assert kept_files(tmp_path) == tmp_path
