"""Checks of user-given files, JSON and digests, and atomic writing of files and folders.

Remote files and folders are first written locally and then uploaded. Digests are SHA-256, stored
next to the files in the format of sha256sum to detect damage.
"""

import hashlib
import itertools
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jaxformer.errors import ConfigError, DataError
from jaxformer.io.paths import AnyPath, any_path, is_remote

if TYPE_CHECKING:
    from jaxformer.io.remote import ObjectInfo, RemotePath

LAST = ("SHA256SUMS", "adapter_config.json", "config.json")
"""The files that mark a folder as complete; they are uploaded last."""
DIGESTS = "SHA256SUMS"
"""The name of the file with the digests of a folder."""
DAMAGED = ".damaged"
"""The ending of the names under which damaged files and folders are kept."""
_JSON_TYPES = {
    dict: "a JSON object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}
_POINTER = b"version https://git-lfs."


def ordinary_file(path: str | os.PathLike) -> Path:
    """Returns the path of a regular file, which can be read more than once.

    Opening a pipe would block, and a device such as /dev/zero has no end.
    """
    path = any_path(path, "file")
    if is_remote(path):
        from jaxformer.io.staging import copied

        return copied(path, {"": object_info(path)})
    try:
        found = path.exists()
    except OSError as error:  # a parent folder is unreadable, or the name is too long
        raise DataError(f"{path}: {error.strerror}") from error
    if not found:
        raise DataError(f"{path} does not exist (looked from {Path.cwd()})")
    if path.is_dir():
        raise DataError(f"{path} is a folder: name a file")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device: name an ordinary file")
    return path


def object_info(path: "RemotePath") -> "ObjectInfo":
    """Returns the metadata that a store has for an object."""
    try:
        info = path.stat()
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    if info.is_directory:
        raise DataError(f"{path} is a folder: name a file")
    return info


def read_bytes(path: str | os.PathLike) -> bytes:
    """Returns the contents of a file."""
    path = any_path(path, "file") if is_remote(path) else ordinary_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        if is_remote(path):
            object_info(path)
        raise DataError(f"{path}: {error.strerror or 'cannot be read'}") from error
    except MemoryError:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes do not fit in memory") from None


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary file, which replaces `path` once it is complete.

    Several processes may write at once: a reader always sees one complete file.
    """
    if is_remote(path):
        with _scratch() as home:
            yield (temporary := home / "object")
            any_path(path, "file").put(temporary)
        return
    path = Path(path)
    temporary = _temporary_name(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # the contents must be on disk before the rename
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: str | os.PathLike, text: str, newline: str | None = None) -> None:
    """Writes a text file in UTF-8, which replaces `path` once it is complete."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline=newline)


def lock_file(path: Path) -> IO:
    """Opens a lock file: created if absent, never truncated, never through a symbolic link."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))


@contextmanager
def temporary_folder(folder: AnyPath) -> Iterator[Path]:
    """Creates an empty folder on the same disk as `folder`, to replace it once complete.

    For a remote folder it is created among the local temporary files.
    """
    if is_remote(folder):
        with _scratch() as home:
            yield home
        return
    home = next(parent for parent in folder.parents if parent.exists())
    temporary = _temporary_name(home / folder.name)
    try:
        temporary.mkdir()
        yield temporary
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{folder} cannot be written: {reason}; nothing was written") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_into_place(temporary: Path, folder: AnyPath) -> None:
    """Renames or uploads a complete folder, unless another process created one there first."""
    if is_remote(folder):
        upload_folder(temporary, folder)
        return
    # Renaming onto a non-empty folder fails on every system, which resolves races.
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(folder)
    if not folder.is_dir():
        raise DataError(f"could not move the finished {folder.name} into {folder.parent}")


def upload_folder(
    source: Path, folder: "RemotePath", wanted: Callable[[Path], bool] = lambda name: True
) -> None:
    """Uploads the files of a folder; the files that mark it as complete go last."""
    names = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    for name in sorted(filter(wanted, names), key=_upload_order):
        (folder / str(name)).put(source / name)


def remove_folder(folder: AnyPath) -> None:
    """Deletes a folder and its contents; deletes only the link if it is a symbolic link."""
    if is_remote(folder):
        folder.rmtree()
    elif folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def check_store(folder: AnyPath, name: str) -> None:
    """Checks that a remote folder can be written to, before any work; accepts any local path."""
    if is_remote(folder):
        from jaxformer.io.remote import check_writable

        check_writable(folder, name)


def check_unused(folder: str | Path) -> None:
    """Checks that a folder is new or empty and can be written to, before any work."""
    folder = any_path(folder, "folder")
    check_store(folder, "folder")
    try:
        is_folder = folder.is_dir()
        is_file = not is_folder and folder.exists()
        in_use = is_folder and any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error
    if is_file:
        raise ConfigError(f"{folder} is a file: name a new or empty folder")
    if in_use:
        raise ConfigError(f"{folder} is not empty: name a new or empty folder")


def write_whole(folder: str | Path, num_bytes: int, write: Callable[[Path], None]) -> None:
    """Writes a folder atomically: it appears once it is complete."""
    check_unused(folder)
    folder = any_path(folder, "folder")
    if not is_remote(folder):
        folder = Path(os.path.realpath(folder))
    with temporary_folder(folder) as temporary:
        free = shutil.disk_usage(temporary).free
        if num_bytes > free:
            raise DataError(
                f"{folder}: {num_bytes / 1e9:.2f} GB have to be written, but the disk has "
                f"{free / 1e9:.2f} GB free"
            )
        write(temporary)
        if is_remote(folder):
            upload_folder(temporary, folder)
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.rename(folder)


def damaged_name(path: AnyPath) -> AnyPath:
    """Returns the first unused name next to a path: NAME.damaged, NAME.damaged-2, ..."""
    endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (path.with_name(f"{path.name}{DAMAGED}{ending}") for ending in endings)
    return next(name for name in names if not is_there(name))


def is_there(path: AnyPath) -> bool:
    """Whether a path exists; true for a link to a missing file."""
    return path.exists() if is_remote(path) else os.path.lexists(path)


def _temporary_name(path: Path) -> Path:
    """Returns an unused hidden name next to a file or folder."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


@contextmanager
def _scratch() -> Iterator[Path]:
    """Context manager for a local temporary folder with files to be uploaded."""
    home = Path(tempfile.mkdtemp(prefix="jaxformer-"))
    try:
        yield home
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{home}, before its upload, cannot be written: {reason}") from error
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _upload_order(name: Path) -> tuple[int, int, str]:
    """Sort key for uploads: index files after the files they name, `LAST` at the end, deep files
    first.
    """
    rank = 2 + LAST.index(name.name) if name.name in LAST else name.name.endswith(".index.json")
    return int(rank), -len(name.parts), str(name)


def sha256_of(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal, reading it in chunks."""
    if is_remote(path):
        return path.sha256()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5_of(path: Path) -> str:
    """Returns the MD5 of a file in hexadecimal, the digest that object stores report."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def write_digests(record: Path, names: Iterable[str]) -> None:
    """Writes the digests of some files in the format of ``sha256sum --check``."""
    lines = [f"{sha256_of(record.with_name(name))}  {name}\n" for name in sorted(names)]
    write_text(record, "".join(lines))


def add_digests(record: Path, names: Iterable[str]) -> None:
    """Writes digests for files of earlier versions, which had none, if the folder is writable."""
    if not record.exists():
        with suppress(OSError, DataError):  # the folder may be read-only
            write_digests(record, names)


def check_digests(record: Path, names: Iterable[str]) -> None:
    """Verifies files against the digests that `write_digests` wrote."""
    lines = read_bytes(record).decode(errors="replace").splitlines()
    recorded = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name in names:
        path = record.with_name(name)
        if name not in recorded:
            raise DataError(f"{record} is damaged: it has no line for {name}")
        try:
            found = sha256_of(ordinary_file(path))
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from error
        if found != recorded[name]:
            raise DataError(f"{path} is damaged: its SHA-256 is not the one in {record.name}")


def check_no_pointer(start: bytes, where: str) -> None:
    """Refuses a git-lfs pointer file."""
    if start.startswith(_POINTER):
        raise DataError(
            f"{where}: this is a git-lfs pointer, not the file: run `git lfs pull` in the "
            "repository's folder, or fetch the file itself"
        )


def read_json(path: str | os.PathLike, kind: type = dict) -> Any:
    """Returns the value in a JSON file."""
    data = read_bytes(path)
    check_no_pointer(data, str(path))
    return parse_json(data, str(path), kind)


def parse_json(text: str | bytes, where: str, kind: type = dict) -> Any:
    """Parses JSON text and checks the type of its value."""
    try:
        value = json.loads(text if isinstance(text, str) else text.decode().removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        line = f" of line {error.lineno}" if error.lineno > 1 else ""
        raise DataError(
            f"{where}: not valid JSON: {error.msg} at column {error.colno}{line}"
        ) from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start].split(b"\n")
        line = f"line {len(before)}" if len(before) > 1 else "the line"
        raise DataError(f"{where}: not UTF-8 at byte {len(before[-1])} of {line}") from error
    except RecursionError:
        raise DataError(f"{where}: not valid JSON: nested too deeply") from None
    except ValueError as error:  # Python reads integers of 4,300 digits at most
        raise DataError(f"{where}: not valid JSON: a number has too many digits") from error
    if not isinstance(value, kind):
        raise DataError(f"{where}: expected {json_type(kind)}, found {json_type(type(value))}")
    return value


def json_type(kind: type) -> str:
    """Returns the JSON name of a Python type: "a list"."""
    return _JSON_TYPES.get(kind, "a number")
