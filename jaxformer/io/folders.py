"""Folders that are written whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from jaxformer.errors import ConfigError, DataError
from jaxformer.io.paths import local_path


def check_unused(folder: str | Path) -> None:
    """Checks, before the work, that a folder can be written to.

    Raises:
        ConfigError: It is a file, a folder that holds something or cannot be read, or a URL.
    """
    folder = local_path(folder, "folder")
    try:
        in_use = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error
    if in_use:
        raise ConfigError(f"{folder} is not empty: name a new or an empty folder")


def write_whole(folder: str | Path, num_bytes: int, write: Callable[[Path], None]) -> None:
    """Writes a folder aside and renames it when it is complete.

    Args:
        folder: Absent or empty; a link is followed.
        num_bytes: About how much will be written.
        write: Fills the folder that it is given.

    Raises:
        ConfigError: The folder holds something.
        DataError: The disk has too little room, or cannot be written to.
    """
    check_unused(folder)
    folder = Path(os.path.realpath(local_path(folder, "folder")))
    try:
        home = next(parent for parent in folder.parents if parent.exists())
        free = shutil.disk_usage(home).free
        if num_bytes > free:
            raise DataError(
                f"{folder}: {num_bytes / 1e9:.2f} GB are to be written, but the disk has "
                f"{free / 1e9:.2f} GB free"
            )
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=home) as scratch:
            written = Path(scratch, "folder")
            written.mkdir()
            write(written)
            folder.parent.mkdir(parents=True, exist_ok=True)
            written.rename(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be written, and nothing of it was: {error}") from error
