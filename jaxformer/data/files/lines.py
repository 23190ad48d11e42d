"""The bytes and lines of text files, compressed or not, and the treatment of malformed ones."""

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from jaxformer.errors import DataError
from jaxformer.extras import optional_module
from jaxformer.io.streams import readable

_LOST = b"\0" * 16  # a block that the file system never wrote
_BUFFER = 1 << 20

Malformed = Callable[[str], None]
"""Receives the error of a line or a row that is left out."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def map_or_report(
    make: Callable[[Item], Made], items: Iterable[Item], malformed: Malformed | None
) -> Iterator[Made]:
    """Yields the result of a function for each item."""
    for item in items:
        try:
            made = make(item)
        except DataError as error:
            if malformed is None:
                raise
            malformed(str(error))
        else:
            yield made


@contextmanager
def opened(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a file for reading, and decompresses .gz and .zst."""
    try:
        with _open(path) as stream:
            yield stream
    except (EOFError, OSError, zlib.error) as error:
        # The errors of the decompressors have no message of the system.
        damage = f"damaged, or not compressed as its name says ({error}): fetch it again"
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or damage}") from error


def byte_lines(path: str | os.PathLike) -> Iterator[bytes]:
    """Yields the lines of a file, which end only at a newline, as bytes."""
    with opened(path) as file:
        yield from file


def text_lines(path: str | os.PathLike) -> Iterator[str]:
    """Yields the lines of a text file, which end only at a newline."""
    for _, text in numbered_lines(path):
        yield text


def numbered_lines(
    path: str | os.PathLike, malformed: Malformed | None = None
) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file, which end only at a newline, with their numbers from 1."""

    def decoded(numbered: tuple[int, bytes]) -> tuple[int, str]:
        number, line = numbered
        return number, line_text(line, path, number)

    yield from map_or_report(decoded, enumerate(byte_lines(path), start=1), malformed)


def line_text(line: bytes, path: str | os.PathLike, number: int) -> str:
    """Returns a line of a file as text, without a byte order mark in the first one."""
    if _LOST in line:
        raise DataError(f"{path}:{number}: not text: it contains a run of null bytes")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}): convert the file") from error
    return text.removeprefix("\ufeff") if number == 1 else text


def encodable(text: str, what: str) -> str:
    """Returns a text if UTF-8 can encode it, or else raises DataError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} holds half of a surrogate pair at character {error.start}, which no UTF-8 "
            "text can contain"
        ) from error
    return text


def _open(path: str | os.PathLike) -> BinaryIO:
    ending = Path(path).suffix.lower()
    if ending == ".gz":
        return gzip.open(readable(path))
    if ending == ".zst":
        # Unlike others, this reader notices that a file ends in the middle of a frame.
        arrow = optional_module("pyarrow", f"reading {path}")
        found = readable(path)
        file = arrow.OSFile(str(found)) if isinstance(found, Path) else arrow.PythonFile(found)
        return io.BufferedReader(arrow.CompressedInputStream(file, "zstd"), _BUFFER)
    found = readable(path)
    return open(found, "rb") if isinstance(found, Path) else found
