"""Files that a user names, and files and folders that are written whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxformer.errors import ConfigError, DataError
from jaxformer.io.paths import local_path


def ordinary_file(path: str | os.PathLike) -> Path:
    """Returns the path of a regular file, which can be read more than once.

    Opening a pipe would block, and a device such as /dev/zero has no end.

    Args:
        path: As the user gave it.

    Returns:
        The path, with its "~" resolved.

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
    """Returns the contents of a file.

    Args:
        path: As the user gave it.

    Returns:
        All of its bytes.

    Raises:
        DataError: It is not a regular file, or cannot be read.
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
    """Gives the name of a new file, which replaces `path` when it is complete.

    Several processes may write at once: a reader sees one complete file or another.

    Args:
        path: The file to write or replace.

    Yields:
        The temporary file to write, in the same folder.

    Raises:
        DataError: The disk is full or cannot be written to; `path` is unchanged.
    """
    path = Path(path)
    temporary = _temporary_name(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # the contents must be on disk before the name is
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Creates an empty folder on the disk of another, to take its place when it is complete.

    Args:
        folder: The folder to write.

    Yields:
        The temporary folder, which is deleted unless it has been renamed.

    Raises:
        DataError: It cannot be written; `folder` is unchanged.
    """
    home = next(parent for parent in folder.parents if parent.exists())
    temporary = _temporary_name(home / folder.name)
    try:
        temporary.mkdir()
        yield temporary
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{folder} cannot be written, and nothing of it was: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_into_place(temporary: Path, folder: Path) -> None:
    """Renames a complete folder, unless another process has put one there first.

    Args:
        temporary: What `temporary_folder` gave, filled.
        folder: The name it is to have.

    Raises:
        DataError: It cannot be renamed, and there is no such folder.
    """
    # Renaming onto a folder that holds files fails on every system, which decides a race.
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(folder)
    if not folder.is_dir():
        raise DataError(f"could not move the finished {folder.name} into {folder.parent}")


def remove_folder(folder: Path) -> None:
    """Deletes a folder with its contents; of a link, only the link."""
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def check_unused(folder: str | Path) -> None:
    """Checks that a folder can be written to, before the work is done.

    Args:
        folder: As the user gave it.

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
    """Writes a folder that appears when it is complete, or not at all.

    Args:
        folder: Absent or empty; a link is followed.
        num_bytes: About how much will be written.
        write: Fills the folder it is given.

    Raises:
        ConfigError: The folder holds something.
        DataError: The disk has too little space, or cannot be written to.
    """
    check_unused(folder)
    folder = Path(os.path.realpath(local_path(folder, "folder")))
    with temporary_folder(folder) as temporary:
        free = shutil.disk_usage(temporary).free
        if num_bytes > free:
            raise DataError(
                f"{folder}: {num_bytes / 1e9:.2f} GB are to be written, but the disk has "
                f"{free / 1e9:.2f} GB free"
            )
        write(temporary)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(folder)


def _temporary_name(path: Path) -> Path:
    """Returns an unused, hidden name beside a file or folder."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")
