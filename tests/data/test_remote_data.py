"""Corpora and tables in object stores: the same documents and rows as on a disk."""

import gzip
import json

import pytest
from corpora import write_rows

from jaxformer.data.files.find import find_files, stamps
from jaxformer.data.files.tables import read_records
from jaxformer.data.text.files import Files, JsonLines, TextFiles
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import upload_folder
from jaxformer.io.paths import any_path
from jaxformer.io.staging import CACHE, staged
from jaxformer.io.streams import readable

pytestmark = pytest.mark.more

pytest_plugins = "object_store"
ROWS = [{"text": f"row {number} é", "label": number % 2} for number in range(5)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["bucket", "memory_bucket"])
def store(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def corpus(tmp_path):
    """A folder with every format of documents and rows."""
    home = tmp_path / "corpus"
    (home / "books" / "deep").mkdir(parents=True)
    (home / "books" / "a.txt").write_text("one\n\ntwo\n")
    (home / "books" / "deep" / "b.txt.gz").write_bytes(gzip.compress(b"three\nfour\n"))
    (home / "books" / ".hidden.txt").write_text("not this")
    for name in ("rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst", "rows.parquet", "file.arrow"):
        write_rows(home / name, ROWS)
    (home / "rows.json").write_text(json.dumps(ROWS))
    (home / "rows.csv").write_text(
        "text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in ROWS)
    )
    return home


def uploaded(folder, url):
    upload_folder(folder, any_path(url, "url"))
    return url


def test_documents_are_those_of_the_disk(store, corpus):
    url = uploaded(corpus, f"{store}/corpus")
    for kind, path, options in (
        (Files, "books", {}),
        (Files, "books", {"sample_by": "line"}),
        (Files, "books/**/*.txt*", {"sample_by": "paragraph"}),
        (Files, "rows.parquet", {}),
        (TextFiles, "books", {}),
        (TextFiles, "books/a.txt", {}),
        (JsonLines, "", {}),
        (JsonLines, "rows.jsonl.gz", {}),
    ):
        there, here = kind(f"{url}/{path}", **options), kind(f"{corpus}/{path}", **options)
        assert list(there.documents()) == list(here.documents()), (kind, path)
        assert there.num_bytes() == here.num_bytes()


@pytest.mark.parametrize(
    "name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst", "rows.json", "rows.csv",
             "rows.parquet", "file.arrow"]
)  # fmt: skip
def test_rows_are_those_of_the_disk(bucket, corpus, name):
    url = uploaded(corpus, f"{bucket}/corpus")
    there = [(row.values, row.number) for row in read_records(f"{url}/{name}")]
    here = [(row.values, row.number) for row in read_records(corpus / name)]
    assert there == here
    assert len(there) == 5


def test_nothing_of_a_stream_is_kept_here(bucket, corpus, cache):
    url = uploaded(corpus, f"{bucket}/corpus")
    for name in ("rows.jsonl.gz", "rows.parquet", "books/a.txt"):
        assert list(Files(f"{url}/{name}").documents())
    assert not cache.exists()


def test_a_saved_data_set_is_read(bucket, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    url = uploaded(tmp_path / "saved", f"{bucket}/saved")
    assert [row.values for row in read_records(url)] == ROWS


def test_objects_that_mark_a_folder_are_not_files(bucket, corpus):
    url = uploaded(corpus, f"{bucket}/corpus")
    for key in ("corpus/", "corpus/books/", "corpus/books/deep/"):  # as consoles write them
        store = any_path(url, "url").store
        store.call_s3("put_object", Bucket=bucket.removeprefix("s3://"), Key=key, Body=b"")
    for path in ("books", "books/**"):
        names = [file.name for file in Files(f"{url}/{path}").files()]
        assert names == ["a.txt", "deep/b.txt.gz"]
    assert "books/" not in any_path(url, "url").files()
    assert "rows.csv" in texts_of(staged(url))


def texts_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_fingerprint_follows_the_contents(bucket, corpus):
    url = uploaded(corpus, f"{bucket}/corpus")
    first = Files(f"{url}/books").fingerprint()
    assert Files(f"{url}/books").fingerprint() == first
    (any_path(url, "url") / "books/a.txt").write_text("one\n\nTWO\n")  # as long as before
    assert Files(f"{url}/books").fingerprint() != first
    assert [name for name, *_ in stamps(find_files(f"{url}/books", [".txt"]))] == [
        "a.txt",
        "deep/b.txt.gz",
    ]


def test_what_is_not_there_is_one_sentence(bucket, corpus):
    for path in (f"{bucket}/none.txt", "s3://no-such-bucket/none.txt"):
        with pytest.raises(DataError, match=rf"^{path} does not exist"):
            list(Files(path).documents())
    with pytest.raises(DataError, match="no file matches s3://"):
        list(Files(f"{bucket}/*.txt").documents())
    with pytest.raises(ConfigError, match=r"path = ftp://host/a.txt: must be a local path"):
        list(Files("ftp://host/a.txt").documents())


def test_an_object_that_changes_while_it_is_read_is_refused(memory_bucket, monkeypatch):
    monkeypatch.setattr("jaxformer.io.streams._PIECE", 16)
    path = any_path(f"{memory_bucket}/a.txt", "path")
    path.write_text("a" * 100)
    with readable(path) as file:
        assert file.read(4) == b"aaaa"
        path.write_text("b" * 100)
        with pytest.raises(DataError, match="changed while it was being read"):
            file.read()


def test_a_lost_connection_costs_one_piece(memory_bucket, monkeypatch):
    monkeypatch.setattr("jaxformer.io.streams._PIECE", 16)
    path = any_path(f"{memory_bucket}/a.txt", "path")
    path.write_text("0123456789" * 10)
    store, calls = type(path.store), []
    read = store.cat_file

    def unsteady(self, name, start=None, end=None, **options):
        calls.append((start, end))
        if len(calls) == 2:
            raise ConnectionError("reset by peer")
        return read(self, name, start=start, end=end, **options)

    monkeypatch.setattr(store, "cat_file", unsteady)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with readable(path) as file:
        assert b"".join(iter(lambda: file.read(10), b"")) == b"0123456789" * 10
    assert calls[1] == calls[2]
