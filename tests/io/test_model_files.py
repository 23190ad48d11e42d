"""The files of a model's folder: links within it and in a cache, and what is not a file."""

import json
import os
import socket

import pytest

from jaxformer.errors import DataError
from jaxformer.io.model_files import file_in, read_object, small_file_in


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (tmp_path / "secret").write_text('{"a": 1}')
    return made


def test_what_is_not_there_is_none(folder):
    assert file_in(folder, "a") is small_file_in(folder, "a") is read_object(folder, "a") is None
    assert file_in(folder / "gone", "a") is file_in(folder, "a\0") is None
    assert file_in(folder, "a" * 5000) is None


def test_links_within_a_folder(folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "real").write_text('{"a": 2}')
    (folder / "relative").symlink_to("deep/real")
    (folder / "absolute").symlink_to(folder / "deep" / "real")
    (folder / "chain").symlink_to("relative")
    for name in ("relative", "absolute", "chain"):
        assert read_object(folder, name) == {"a": 2}
    linked = folder.with_name("linked")
    linked.symlink_to(folder)
    assert read_object(linked, "chain") == {"a": 2}


@pytest.fixture
def snapshot(tmp_path):
    """As Hugging Face's cache keeps a model."""
    home = tmp_path / "models--who--what"
    made = home / "snapshots" / "0123abcd"
    made.mkdir(parents=True)
    (home / "blobs").mkdir()
    (home / "blobs" / "beef").write_text('{"a": 3}')
    (made / "config.json").symlink_to("../../blobs/beef")
    return made


def test_links_of_a_cache(snapshot, tmp_path):
    assert read_object(snapshot, "config.json") == {"a": 3}
    (tmp_path / "mine").symlink_to(snapshot)
    assert read_object(tmp_path / "mine", "config.json") == {"a": 3}


def test_links_to_the_blobs_of_all_models(snapshot, tmp_path):
    """A newer cache keeps large files once for all models."""
    shared, xet = tmp_path / "blobs" / "ab", "ab" * 32
    shared.mkdir(parents=True)
    (shared / xet).write_text('{"a": 4}')
    (snapshot.parents[1] / "blobs" / "cafe").symlink_to(f"../../blobs/ab/{xet}")
    (snapshot / "model.json").symlink_to("../../blobs/cafe")
    assert read_object(snapshot, "model.json") == {"a": 4}
    outside = snapshot.parents[3] / "folder"
    outside.mkdir(exist_ok=True)
    (outside / "model.json").symlink_to(shared / xet)
    with pytest.raises(DataError, match="which is outside of the model's folder"):
        file_in(outside, "model.json")


def test_a_cache_is_no_way_out(snapshot, tmp_path):
    (tmp_path / "secret").write_text("{}")
    blobs = snapshot.parents[1] / "blobs"
    (snapshot / "other").symlink_to("../../../secret")
    (blobs / "cafe").symlink_to(tmp_path / "secret")
    (snapshot / "through").symlink_to("../../blobs/cafe")
    for name in ("other", "through"):
        with pytest.raises(DataError, match=f"{name} is a link to .*secret, which is outside"):
            file_in(snapshot, name)
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="which is outside of the model's folder"):
        file_in(snapshot, "config.json")


@pytest.mark.parametrize(
    "target", ["../secret", "{home}/secret", "deep/../../secret", "/etc/passwd"]
)
def test_links_that_lead_out(folder, target):
    (folder / "deep").mkdir()
    (folder / "vocab.txt").symlink_to(target.format(home=folder.parent))
    with pytest.raises(
        DataError, match=r"vocab\.txt is a link to .*, which is outside of the model's folder"
    ):
        file_in(folder, "vocab.txt")


def test_a_folder_on_the_way_that_leads_out(folder):
    (folder / "deep").symlink_to("..")
    with pytest.raises(DataError, match="which is outside of the model's folder"):
        file_in(folder, "deep/secret")


def test_what_is_no_file(folder, monkeypatch):
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("gone")
    monkeypatch.chdir(folder)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for name in ("folder", "pipe", "loop", "dangling", "socket"):
        with pytest.raises(DataError, match=name):
            read_object(folder, name)


def test_sizes_that_no_such_file_has(folder):
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**30)
    for read in (read_object, small_file_in):
        with pytest.raises(DataError, match=r"config\.json has 1,024 MiB: .* fetch it again"):
            read(folder, "config.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "5", '"x"', "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\xff", "{"]
)
def test_what_is_no_object(folder, text):
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"config\.json"):
        read_object(folder, "config.json")
    (folder / "config.json").write_text(json.dumps({"a": [1]}))
    assert read_object(folder, "config.json") == {"a": [1]}
