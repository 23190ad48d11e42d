"""Copies of remote files: whole, found again, copied anew when they change."""

import threading

import pytest

from jaxformer.errors import DataError
from jaxformer.io.mirror import mirrored, pull, push, store_path_of
from jaxformer.io.paths import any_path
from jaxformer.io.remote import RemotePath
from jaxformer.io.staging import CACHE, address_of, fetch, staged

pytest_plugins = "object_store"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def filled(url, **files):
    for name, text in files.items():
        (any_path(url, "url") / name.replace("__", "/")).write_text(text)
    return url


def texts(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def watched(monkeypatch, method):
    """The names of the paths whose method is called from now on."""
    names, original = [], getattr(RemotePath, method)
    monkeypatch.setattr(
        RemotePath, method, lambda self, file: [names.append(self.name), original(self, file)]
    )
    return names


@pytest.fixture(params=[pytest.param("bucket", marks=pytest.mark.more), "memory_bucket"])
def store(request):
    return request.getfixturevalue(request.param)


def test_a_folder_is_copied_once_and_anew_when_it_changes(store, monkeypatch):
    url = filled(f"{store}/model", a="1", deep__b="22")
    copy = staged(url)
    assert copy.name == "model"
    assert texts(copy) == {"a": "1", "deep/b": "22"}
    fetched = watched(monkeypatch, "get")
    assert staged(url) == copy
    assert not fetched
    filled(url, a="x")
    other = staged(url)
    assert other != copy
    assert texts(other) == {"a": "x", "deep/b": "22"}


def test_a_file_and_a_choice_of_files_are_copied(store):
    url = filled(f"{store}/model", a="1", b="2")
    assert staged(f"{url}/a").read_text() == "1"
    assert texts(staged(url, lambda name: name == "b")) == {"b": "2"}


def test_a_local_path_is_its_own_copy(tmp_path):
    assert staged(tmp_path) == tmp_path
    assert mirrored(tmp_path) == tmp_path
    assert address_of(tmp_path / "a") is None


def test_what_is_missing_is_one_sentence(bucket):
    with pytest.raises(DataError, match=r"s3://.*/nothing does not exist"):
        staged(f"{bucket}/nothing")
    with pytest.raises(DataError, match=r"s3://no-such-bucket/a does not exist"):
        staged("s3://no-such-bucket/a")


def test_a_copy_that_was_interrupted_goes_on(memory_bucket, monkeypatch, cache):
    url = filled(f"{memory_bucket}/model", a="1", b="2", c="3")
    get = RemotePath.get

    def breaks(self, to):
        get(self, to)
        if self.name == "b":
            to.write_text("")  # half of it
            raise KeyboardInterrupt

    monkeypatch.setattr(RemotePath, "get", breaks)
    with pytest.raises(KeyboardInterrupt):
        staged(url)
    left = {path.name for path in cache.rglob("*") if path.is_file()}
    assert "b" not in left
    assert not any(name.endswith(".part") for name in left)
    monkeypatch.setattr(RemotePath, "get", get)
    again = watched(monkeypatch, "get")
    assert texts(staged(url)) == {"a": "1", "b": "2", "c": "3"}
    assert "b" in again


def test_a_file_that_arrives_short_is_refused(memory_bucket, monkeypatch):
    url = filled(f"{memory_bucket}/model", a="1234")
    monkeypatch.setattr(RemotePath, "get", lambda self, to: to.write_text("12"))
    with pytest.raises(DataError, match="arrived with 2 bytes of 4"):
        staged(url)


def test_processes_that_ask_at_once_copy_once(memory_bucket, monkeypatch):
    url = filled(f"{memory_bucket}/model", a="1" * 1000)
    fetched = watched(monkeypatch, "get")
    threads = [threading.Thread(target=staged, args=(url,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == ["a"]


def test_a_mirror_holds_what_the_store_does(store):
    run = filled(f"{store}/run", labels="a", tokenizer__t="b", checkpoints__1__x="c")
    home = pull(any_path(run, "run"), ("tokenizer", "labels"))
    assert texts(home) == {"labels": "a", "tokenizer/t": "b"}
    assert address_of(home / "tokenizer") == f"{run}/tokenizer"
    assert str(store_path_of(home)) == run
    (home / "tokenizer" / "more").write_text("d")
    (home / "labels").write_text("e")
    push(home, any_path(run, "run"), ("tokenizer", "labels"))
    assert (any_path(run, "run") / "labels").read_text() == "e"
    assert (any_path(run, "run") / "tokenizer/more").read_text() == "d"
    any_path(f"{run}/tokenizer/t", "file").unlink()
    assert texts(pull(any_path(run, "run"), ("tokenizer",))) == {
        "labels": "e",
        "tokenizer/more": "d",
    }


def test_a_mirror_is_compared_with_the_store_without_a_download(bucket, monkeypatch):
    run = any_path(filled(f"{bucket}/run", labels="a", tokenizer__t="b"), "run")
    home = pull(run, ("tokenizer", "labels"))
    (home / "labels").write_text("c")
    moved = watched(monkeypatch, "put")
    for read in ("read_bytes", "get", "open"):
        monkeypatch.setattr(RemotePath, read, None)
    push(home, run, ("tokenizer", "labels"))
    assert moved == ["labels"]
    monkeypatch.undo()
    assert (run / "labels").read_text() == "c"


def test_a_mirror_takes_what_another_machine_wrote_in_the_same_size(bucket):
    run = any_path(filled(f"{bucket}/run", labels="cat"), "run")
    home = pull(run, ("labels",))
    (run / "labels").write_text("dog")
    assert texts(pull(run, ("labels",))) == {"labels": "dog"}
    assert texts(home) == {"labels": "dog"}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "a//b", "."])
def test_a_name_that_leads_elsewhere_is_refused(memory_bucket, tmp_path, name):
    url = any_path(filled(f"{memory_bucket}/model", a="1"), "url")
    with pytest.raises(DataError, match="is not a valid file name here"):
        fetch(url, tmp_path / "cache" / "home", {name: (url / "a").stat()})
    assert not (tmp_path / "cache").exists()
