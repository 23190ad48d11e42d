"""Reads .npz files safely: without pickles, and with no more memory than the headers declare."""

import math
import os
import zipfile

import numpy as np

from jaxformer.errors import DataError, StorageError
from jaxformer.io.files import ordinary_file

_MOST_BYTES = 1 << 32
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the arrays of a .npz file by name."""
    try:
        local = ordinary_file(path)
        with zipfile.ZipFile(local) as archive:
            _check_members(archive)
        with np.load(local, allow_pickle=False) as file:
            return dict(file)
    except (DataError, StorageError):
        raise
    except Exception as error:  # the archive and header parsers raise many kinds
        raise DataError(f"{path}: not a readable .npz file: {error}") from error


def _check_members(archive: zipfile.ZipFile) -> None:
    """Raises ValueError unless the arrays fit in memory and match their headers."""
    size = sum(member.file_size for member in archive.infolist())
    if size > _MOST_BYTES:
        raise ValueError(
            f"its arrays take {size / 2**30:.2f} GiB, but at most {_MOST_BYTES >> 30} are read: "
            "give fewer rows"
        )
    for member in archive.infolist():
        _check_header(archive, member)


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raises ValueError unless an array has the size that its header declares."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{member.filename} has the format {version}, which is not supported")
        shape, _, dtype = _HEADERS[version](file)
        actual = member.file_size - file.tell()
    if dtype.kind not in "biuf":
        raise ValueError(f"{member.filename} contains {dtype}, not numbers")
    declared = math.prod(shape) * dtype.itemsize
    if declared != actual:
        raise ValueError(f"{member.filename} declares {declared} bytes but has {actual}")
