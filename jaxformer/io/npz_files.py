"""Arrays in .npz files that someone else wrote: no pickles, and no more memory than they hold."""

import math
import os
import zipfile

import numpy as np

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file

_MOST_BYTES = 1 << 32
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the arrays of a .npz file by name.

    Args:
        path: The file, as `numpy.savez` and `numpy.savez_compressed` write it.

    Raises:
        DataError: It is no such file, an array is other than its header says or not of numbers,
            or all of them take more than 4 GiB.
    """
    try:
        with zipfile.ZipFile(ordinary_file(path)) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size > _MOST_BYTES:
                raise ValueError(
                    f"its arrays take {size / 2**30:.2f} GiB, of which "
                    f"{_MOST_BYTES >> 30} are read at most: give fewer rows"
                )
            for member in members:
                _check_header(archive, member)
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except DataError:
        raise
    except Exception as error:  # the parsers of the archive and of the headers raise many
        raise DataError(f"{path}: not an .npz file that can be read: {error}") from error


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raises ValueError unless an array is as large as its header says."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{member.filename} has the format {version}, which is not of numbers")
        shape, _, dtype = _HEADERS[version](file)
        held = member.file_size - file.tell()
    if dtype.kind not in "biuf":
        raise ValueError(f"{member.filename} holds {dtype}, not numbers")
    said = math.prod(shape) * dtype.itemsize
    if said != held:
        raise ValueError(f"{member.filename} says that it holds {said} bytes, and has {held}")
