"""Opens local files and remote objects for streaming reads."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file
from jaxformer.io.paths import any_path, is_remote

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath

_PIECE = 1 << 23


def readable(path: str | os.PathLike) -> Path | BinaryIO:
    """Returns a local path unchanged, or a seekable stream of a remote object.

    The object is not copied to this machine. Reading raises `StorageError` if the connection is
    lost for too long, and `DataError` if the object changes meanwhile.
    """
    if not is_remote(path):
        return ordinary_file(path)
    path = any_path(path, "file")
    try:
        return io.BufferedReader(_Object(path), _PIECE)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error


class _Object(io.RawIOBase):
    """Requests each chunk separately, so that a lost connection only repeats one chunk."""

    def __init__(self, path: "RemotePath"):
        self._path = path
        self._place = 0
        self._info = path.stat()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {0: 0, 1: self._place, 2: self._info.st_size}[whence]
        return self._place

    def readinto(self, buffer) -> int:
        end = min(self._place + len(buffer), self._info.st_size)
        if end <= self._place:
            return 0
        piece = self._path.read_range(self._place, end)
        if len(piece) != end - self._place or (
            end == self._info.st_size and self._path.stat().etag != self._info.etag
        ):
            raise DataError(f"{self._path} changed while it was being read: run the command again")
        buffer[: len(piece)] = piece
        self._place = end
        return len(piece)
