"""Files that a user names, and files that are written whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxformer.errors import DataError
from jaxformer.io.paths import local_path


def ordinary_file(path: str | os.PathLike) -> Path:
    """Returns the path of a file that can be read from its beginning as often as needed.

    Opening a pipe would wait for ever, and a device such as /dev/zero has no end.

    Raises:
        ConfigError: It is a URL.
        DataError: There is no such file, or it is a folder, a pipe or a device.
    """
    path = local_path(path, "file")
    try:
        found = path.exists()
    except OSError as error:  # a folder on the way may not be read, or the name is too long
        raise DataError(f"{path}: {error.strerror}") from error
    if not found:
        raise DataError(f"{path} does not exist (looked from {Path.cwd()})")
    if path.is_dir():
        raise DataError(f"{path} is a folder: name a file")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device: name an ordinary file")
    return path


def read_bytes(path: str | os.PathLike) -> bytes:
    """Returns all that a file holds.

    Raises:
        DataError: It is no ordinary file, or cannot be read.
    """
    path = ordinary_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except MemoryError:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes do not fit in memory") from None


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Gives the name of a new file, which takes the place of `path` once it is complete.

    Several processes may write at once; a reader sees one file or another, never half of one.

    Raises:
        DataError: The disk is full or cannot be written to; `path` is as it was.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())  # the contents must be on disk before the name is
        aside.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            aside.unlink()
