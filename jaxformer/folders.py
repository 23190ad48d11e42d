"""Folders that are written whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from jaxformer.errors import ArgumentError, ConfigError, DataError, check_argument


def folder_path(name: str, value: object) -> Path:
    """The path that an argument gives: of a folder, which may be absent.

    Args:
        name: The argument as its caller knows it.
        value: A text or a path.

    Raises:
        ArgumentError: It is no path, or that of a file.
    """
    is_path = isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b"")
    check_argument(name, value, is_path, "the path of a folder")
    try:
        path = Path(value).expanduser()
        check_argument(name, value, path.is_dir() or not path.exists(), "a folder, not a file")
    except (OSError, RuntimeError, TypeError) as error:  # no such user; not to be looked at
        raise ArgumentError(f"{name} = {value!r}: must be the path of a folder: {error}") from error
    return path


def check_unused(folder: str | Path) -> None:
    """Checks, before the work, that a folder can be written to.

    Raises:
        ConfigError: It is a file, or a folder that holds something.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: name a new or an empty folder")


def write_whole(folder: str | Path, num_bytes: int, write: Callable[[Path], None]) -> None:
    """Writes a folder aside and renames it when it is complete.

    Args:
        folder: Absent or empty.
        num_bytes: About how much will be written.
        write: Fills the folder that it is given.

    Raises:
        ConfigError: The folder holds something.
        DataError: The disk has too little room, or cannot be written to.
    """
    check_unused(folder)
    folder = Path(folder).expanduser().absolute()
    home = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(home).free
    if num_bytes > free:
        raise DataError(
            f"{folder}: {num_bytes / 1e9:.2f} GB are to be written, but the disk has "
            f"{free / 1e9:.2f} GB free"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=home) as scratch:
            written = Path(scratch, "folder")
            written.mkdir()
            write(written)
            folder.parent.mkdir(parents=True, exist_ok=True)
            written.rename(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written, and nothing of it was: {error}") from error
