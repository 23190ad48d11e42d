"""Local copies of remote files; a local path is returned unchanged.

A copy is identified by the URL and by the names, sizes and versions of its files, so changed files
are copied again. Each file is written atomically.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.errors import DataError
from jaxformer.io.paths import any_path, is_remote

if TYPE_CHECKING:
    from jaxformer.io.remote import ObjectInfo, RemotePath

CACHE = "JAXFORMER_CACHE"
"""Environment variable: the cache folder for copies of remote files."""
_ADDRESS, _LOCK, _PART = ".address", ".lock", ".part"
_AT_ONCE = 8
_ANNOUNCED = 1 << 28  # bytes
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Returns the cache folder for remote files: JAXFORMER_CACHE, or one in the user's cache."""
    return Path(os.environ.get(CACHE) or "~/.cache/jaxformer").expanduser().absolute()


def staged(path: str | os.PathLike, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Returns a copy on this machine of a remote file or folder.

    If several processes call this at once, one copies and the others wait. An interrupted copy
    continues with the missing files.
    """
    if not is_remote(path):
        return Path(path)
    remote = any_path(path, "path")
    try:
        info = remote.stat()
        found = remote.files() if info.is_directory else {"": info}
    except FileNotFoundError:
        found = {}
    if not found:
        raise DataError(
            f"{remote} does not exist: there is no object with this name or below it; check the "
            "bucket and the name"
        )
    return copied(remote, {name: info for name, info in sorted(found.items()) if wanted(name)})


def copied(remote: "RemotePath", files: Mapping[str, "ObjectInfo"]) -> Path:
    """Returns a local copy of some files of a remote folder, like `staged`."""
    _check_names(remote, files)
    listed = [[name, info.st_size, info.etag] for name, info in files.items()]
    digest = hashlib.sha256(json.dumps([str(remote), listed]).encode()).hexdigest()[:16]
    home = addressed_folder("files", digest, remote) / remote.name
    if not all(_is_whole(home / name, info) for name, info in files.items()):
        with one_at_a_time(home.parent):
            fetch(remote, home, files)
    return home


def fetch(remote: "RemotePath", home: Path, files: Mapping[str, "ObjectInfo"]) -> None:
    """Copies the remote files that are missing locally; each is written atomically."""
    _check_names(remote, files)
    missing = {n: info for n, info in files.items() if not _is_whole(home / n, info)}
    size = sum(info.st_size for info in missing.values())
    _check_space(remote, home, size)
    if size >= _ANNOUNCED:
        _log.info("Copying %d files, %.2f GB, of %s", len(missing), size / 1e9, remote)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in threads.map(lambda name: _fetch(remote, home, name, missing[name]), missing):
            pass


def address_of(path: str | os.PathLike) -> str | None:
    """Returns the URL that a local path is a copy of, or None."""
    path = Path(path)
    for parent in path.parents:
        if (parent / _ADDRESS).is_file():
            top, *below = path.relative_to(parent).parts
            url = (parent / _ADDRESS).read_text(encoding="utf-8")
            return "/".join([url, *below]) if url.endswith(f"/{top}") else None
    return None


def name_of(path: str | os.PathLike) -> str:
    """Returns the name of a path for messages: the URL that it is a copy of, or the path itself."""
    return address_of(path) or os.fspath(path)


def addressed_folder(kind: str, name: str, remote: "RemotePath") -> Path:
    """Returns a cache folder, which records the URL that it is a copy of."""
    folder = cache_folder() / kind / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _ADDRESS).exists():
            aside = folder / f"{_ADDRESS}.{uuid.uuid4().hex}"
            aside.write_text(str(remote), encoding="utf-8")
            aside.replace(folder / _ADDRESS)
    except OSError as error:
        raise DataError(
            f"{folder} cannot hold a copy of {remote} ({error.strerror or error}): set {CACHE} to "
            "a writable folder"
        ) from error
    return folder


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Locks a folder so that one local process at a time works in it."""
    with (folder / _LOCK).open("w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(remote: "RemotePath", home: Path, name: str, expected: "ObjectInfo") -> None:
    target, source = (home / name, remote / name) if name else (home, remote)
    part = target.with_name(f".{target.name}{_PART}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.get(part)
        size, now = part.stat().st_size, source.stat()
        if size != expected.st_size:
            raise DataError(f"{source} arrived with {size:,} bytes of {expected.st_size:,}")
        if now.etag != expected.etag:
            raise DataError(f"{source} changed while it was being read: run the command again")
        part.replace(target)
    except FileNotFoundError as error:
        raise DataError(f"{source} was removed while it was being read") from error
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def _check_names(remote: "RemotePath", names: Iterable[str]) -> None:
    """Refuses object names that would escape the folder that they are copied to."""
    for name in names:
        if name and not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise DataError(
                f"{remote} holds {name!r}, which is not a valid file name here: rename it"
            )


def _is_whole(path: Path, expected: "ObjectInfo") -> bool:
    return path.is_file() and path.stat().st_size == expected.st_size


def _check_space(remote: "RemotePath", home: Path, size: int) -> None:
    disk = next(folder for folder in home.parents if folder.is_dir())
    free = shutil.disk_usage(disk).free
    if size > free:
        raise DataError(
            f"{remote}: {size / 1e9:.2f} GB have to be copied to {home.parent}, which has "
            f"{free / 1e9:.2f} GB free: free some, or set {CACHE} to a folder with more"
        )
