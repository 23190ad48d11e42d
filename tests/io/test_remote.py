"""Paths of object stores, on a server and in memory, behave as those of a disk."""

import hashlib

import pytest

from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import (
    check_unused,
    read_bytes,
    remove_folder,
    replacing,
    sha256_of,
    temporary_folder,
    write_whole,
)
from jaxformer.io.paths import any_path
from jaxformer.io.remote import RemotePath, check_readable, check_writable

pytest_plugins = "object_store"
pytestmark = pytest.mark.more

STORES = ["bucket", "memory_bucket", pytest.param("gcs_bucket", marks=pytest.mark.slow)]


@pytest.fixture(params=STORES)
def home(request):
    return any_path(f"{request.getfixturevalue(request.param)}/runs", "run_dir")


def test_names_are_those_of_a_path(home):
    path = home / "one" / "a.json"
    assert isinstance(path, RemotePath)
    assert str(path) == f"{home.parent}/runs/one/a.json"
    assert (path.name, path.suffix, path.parent.name) == ("a.json", ".json", "one")
    assert path.with_name("b") == home / "one/b"
    assert path.absolute() is path
    assert RemotePath(str(path)) == path


def test_what_is_written_is_there(home):
    run = home / "one"
    assert not run.exists()
    assert not run.is_dir()
    assert not run.is_file()
    assert not run.files()
    (run / "a" / "b.txt").write_text("ä")
    (run / "c.bin").write_bytes(b"12345")
    assert run.is_dir()
    assert not run.is_file()
    assert (run / "c.bin").is_file()
    assert sorted(path.name for path in run.iterdir()) == ["a", "c.bin"]
    assert [path.name for path in run.rglob("*.txt")] == ["b.txt"]
    assert list(run.glob("*/b*")) == [run / "a" / "b.txt"]
    assert {name: info.st_size for name, info in run.files().items()} == {"a/b.txt": 2, "c.bin": 5}
    assert (run / "a" / "b.txt").read_text() == "ä"
    assert (run / "c.bin").stat().length == 5
    assert sha256_of(run / "c.bin") == hashlib.sha256(b"12345").hexdigest()
    before = (run / "c.bin").stat().etag
    (run / "c.bin").write_bytes(b"54321")
    assert (run / "c.bin").stat().etag != before
    with pytest.raises(FileNotFoundError):
        (run / "d").read_bytes()
    (run / "d").unlink(missing_ok=True)
    run.rmtree()
    run.rmtree()
    assert not run.exists()


def test_a_rename_copies_all_before_it_deletes_any(home, monkeypatch):
    for name in ("a", "b", "mark"):
        (home / "one" / name).write_text(name)
    deleted, target = [], home / "two"
    unlink = RemotePath.unlink

    def watched(path, missing_ok=False):
        deleted.append((path.name, sorted(target.files())))
        unlink(path, missing_ok)

    monkeypatch.setattr(RemotePath, "unlink", watched)
    (home / "one").rename(target, first="mark")
    assert deleted[0] == ("mark", ["a", "b", "mark"])
    assert not (home / "one").exists()
    assert (target / "b").read_text() == "b"


def test_a_file_replaces_another_whole_or_not_at_all(home):
    with replacing(home / "x") as file:
        file.write_text("first")
    with pytest.raises(KeyboardInterrupt), replacing(home / "x") as file:  # noqa: PT012
        file.write_text("sec")
        raise KeyboardInterrupt
    assert read_bytes(home / "x") == b"first"
    with pytest.raises(DataError, match="does not exist"):
        read_bytes(home / "y")


def test_a_folder_is_uploaded_when_it_is_complete(home):
    def write(folder):
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text("a")
        (folder / "config.json").write_text("{}")

    write_whole(home / "out", 100, write)
    assert sorted((home / "out").files()) == ["config.json", "sub/a"]
    with pytest.raises(ConfigError, match="is not empty"):
        check_unused(home / "out")
    with pytest.raises(KeyboardInterrupt), temporary_folder(home / "new") as temporary:  # noqa: PT012
        write(temporary)
        raise KeyboardInterrupt
    assert not temporary.exists()
    assert not (home / "new").exists()
    remove_folder(home / "out")
    check_unused(home / "out")


def test_a_probe_leaves_nothing(home):
    check_writable(home, "run_dir")
    check_readable(home, "run_dir")
    assert not home.files()


@pytest.mark.parametrize("check", [check_writable, check_readable])
def test_a_bucket_that_does_not_exist_is_named(bucket, check):
    path = any_path("s3://no-such-bucket/run", "run_dir")
    with pytest.raises(ConfigError) as error:
        check(path, "run_dir")
    assert str(error.value) == (
        "run_dir = s3://no-such-bucket/run: must be in a bucket that exists: there is no bucket "
        "'no-such-bucket'; create it, or name another one"
    )
    assert not path.exists()
