"""Files that a user names: what is no ordinary file is refused, and writing is all or nothing."""

import errno
import hashlib
import os

import pytest

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file, read_bytes, replacing, sha256_of


def test_the_bytes_of_a_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\x00\xff")
    assert read_bytes(path) == b"\x00\xff"
    assert sha256_of(path) == hashlib.sha256(b"\x00\xff").hexdigest()
    (tmp_path / "link").symlink_to(path)
    assert ordinary_file(tmp_path / "link").read_bytes() == b"\x00\xff"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "absent does not exist"),
        ("folder", "folder is a folder: name a file"),
        ("pipe", "pipe is a pipe or a device: name an ordinary file"),
        ("/dev/zero", "/dev/zero is a pipe or a device"),
        ("a\0b", "does not exist"),
        ("~nobody-of-this-name/a", "does not exist"),
        ("a" * 10_000, "File name too long"),
    ],
)
def test_what_is_no_ordinary_file_is_refused_unopened(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=message):
        read_bytes(tmp_path / name)


def replace(path, text, error=None):
    with replacing(path) as aside:
        aside.write_text(text)
        if error:
            raise error


def test_a_file_replaces_another_when_it_is_complete(tmp_path):
    path = tmp_path / "a"
    replace(path, "old")
    with replacing(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(KeyError):
        replace(path, "half", KeyError())
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match="a cannot be written: No space left on device"):
        replace(path, "new", full)
    assert path.read_text() == "old"
    with pytest.raises(DataError, match="b cannot be written: No such file or directory"):
        replace(tmp_path / "absent" / "b", "")
