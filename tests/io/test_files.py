"""Files that a user names: ordinary, with JSON of the right type, written whole or not at all."""

import errno
import hashlib
import os

import pytest

from jaxformer.errors import DataError
from jaxformer.io.files import (
    ordinary_file,
    parse_json,
    read_bytes,
    read_json,
    replacing,
    sha256_of,
)


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


def test_json_values_of_each_kind(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, 2.5, null, "\xc3\xa9"]}')
    assert read_json(path) == {"a": [1, 2.5, None, "é"]}
    assert parse_json("[1]", "here", list) == [1]
    assert parse_json("3", "here", object) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON: Expecting value at column 1$"),
        (b'{"a": 1', "not valid JSON: .* at column 8$"),
        (b'{"a": 1,\n\n"b"}', "not valid JSON: .* at column 4 of line 3$"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7 of the line"),
        (b'{"a":\n"\xff"}', "not UTF-8 at byte 1 of line 2"),
        (b'{\x00"\x00a\x00"\x00', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON: nested too deeply"),
        (b'{"a":' * 100_000, "not valid JSON: nested too deeply"),
        (b'{"a": %s}' % (b"9" * 4301), "not valid JSON: a number has too many digits"),
        (b"[1]", "expected a JSON object, found a list"),
        (b"true", "expected a JSON object, found a boolean"),
        (b"null", "expected a JSON object, found null"),
        (b"NaN", "expected a JSON object, found a number"),
    ],
)
def test_json_that_is_no_object_is_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=rf"^b\.jsonl:7: {message}"):
        parse_json(text, "b.jsonl:7")
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(DataError, match=rf"a\.json: {message}"):
        read_json(tmp_path / "a.json")
