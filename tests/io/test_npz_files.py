"""Arrays from outside: no pickles, no lies about sizes, no archives that expand without end."""

import io
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.errors import DataError
from jaxformer.io.npz_files import read_npz

ARRAYS = {
    "ids": np.arange(12).reshape(3, 4),
    "mask": np.asfortranarray(np.ones((2, 3), bool)),
    "image": np.float32([[0.5]]),
    "none": np.zeros((0, 4)),
    "one": np.array(3),
}


def archive(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)


def npy(header, content=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


def saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


HEADER = {"descr": "<i4", "fortran_order": False, "shape": (1 << 40,)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(HEADER, bytes(16)), "x.npy declares 4398046511104 bytes but has 16"),
        (npy(HEADER | {"shape": (2**62, 2**62)}), "declares"),
        (npy(HEADER | {"shape": (2**40, 0)}, bytes(8)), "declares 0 bytes but has 8"),
        (npy(HEADER | {"descr": "|S0"}), "not numbers"),
        (saved(np.array([{}, None])), "contains object, not numbers"),
        (saved(np.array(["a"])), "not numbers"),
        (saved(np.zeros(2, "i4,f4")), "not numbers"),
        (b"\x93NUMPY\x01\x00v\x00" + b"(" * 118, "multi-line"),
        (b"\x93NUMPY\x09\x00v\x00" + b" " * 118, "format"),
        (b"", "magic"),
        (b"text", "magic"),
    ],
)
def test_an_array_that_is_none_is_refused_before_memory_is_taken(tmp_path, content, message):
    archive(tmp_path / "a.npz", {"x.npy": content})
    with pytest.raises(DataError, match=rf"a\.npz: not a readable \.npz file.*{message}"):
        read_npz(tmp_path / "a.npz")


def test_an_archive_that_expands_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.io.npz_files._MOST_BYTES", 1 << 20)
    block = npy(HEADER | {"shape": (1 << 16,)}) + bytes(1 << 18)
    archive(tmp_path / "a.npz", {f"{number}.npy": block for number in range(5)})
    assert (tmp_path / "a.npz").stat().st_size < 1 << 13
    with pytest.raises(DataError, match=r"arrays take .* GiB, but at most .* are read"):
        read_npz(tmp_path / "a.npz")


def test_what_is_no_archive_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "a.npy": "not a zip file",
        "pipe": "is a pipe",
        "": "is a folder",
    }.items():
        with pytest.raises(DataError, match=message):
            read_npz(tmp_path / name)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_any_damage_is_refused_or_harmless(tmp_path_factory, place, value):
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    np.savez(path, **ARRAYS)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    try:
        found = read_npz(path)
    except DataError:
        return
    for array in found.values():
        assert any(np.array_equal(array, whole) for whole in ARRAYS.values())
