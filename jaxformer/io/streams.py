"""Files that are read from any place, the objects of a store piece by piece."""

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
    """Returns what reads a file: its path, or the stream of an object, which can seek.

    Nothing of an object is kept on this machine. Reading it raises `StorageError` if the connection
    is lost and does not come back, and `DataError` if it is written anew meanwhile.
    """
    if not is_remote(path):
        return ordinary_file(path)
    path = any_path(path, "file")
    try:
        return io.BufferedReader(_Object(path), _PIECE)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error


class _Object(io.RawIOBase):
    """Asks for each piece by itself, so that a lost connection costs one piece."""

    def __init__(self, path: "RemotePath"):
        self._path, self._place, self._info = path, 0, path.stat()

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
            raise DataError(f"{self._path} was written anew while it was read: run the same again")
        buffer[: len(piece)] = piece
        self._place = end
        return len(piece)
