"""Copies on this machine of what an object store holds; a local path is its own copy.

A copy is found again by the address, the names, the sizes and the versions of its files, so that
what is written anew is copied anew. Each file appears whole or not at all.
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
"""The environment variable that names the folder for copies of remote files."""
_ADDRESS, _LOCK, _PART = ".address", ".lock", ".part"
_AT_ONCE = 8
_ANNOUNCED = 1 << 28  # bytes
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Returns the folder for copies of remote files: that of JAXFORMER_CACHE, or the user's own."""
    return Path(os.environ.get(CACHE) or "~/.cache/jaxformer").expanduser().absolute()


def staged(path: str | os.PathLike, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Returns a copy on this machine of a remote file or folder.

    Several processes may ask at once: one copies, and the others wait for it. A copy that was
    interrupted goes on with the files that are missing.
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
            f"{remote} does not exist: no object has this name, nor is one below it; check the "
            "bucket and the name"
        )
    return copied(remote, {name: info for name, info in sorted(found.items()) if wanted(name)})


def copied(remote: "RemotePath", files: Mapping[str, "ObjectInfo"]) -> Path:
    """Returns a copy on this machine of some files of a folder, see `staged`."""
    _check_names(remote, files)
    listed = [[name, info.st_size, info.etag] for name, info in files.items()]
    digest = hashlib.sha256(json.dumps([str(remote), listed]).encode()).hexdigest()[:16]
    home = addressed_folder("files", digest, remote) / remote.name
    if not all(_is_whole(home / name, info) for name, info in files.items()):
        with one_at_a_time(home.parent):
            fetch(remote, home, files)
    return home


def fetch(remote: "RemotePath", home: Path, files: Mapping[str, "ObjectInfo"]) -> None:
    """Copies those of some remote files that are not there yet; each appears whole."""
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
    """Returns the URL of which a path on this machine is a copy."""
    path = Path(path)
    for parent in path.parents:
        if (parent / _ADDRESS).is_file():
            top, *below = path.relative_to(parent).parts
            url = (parent / _ADDRESS).read_text(encoding="utf-8")
            return "/".join([url, *below]) if url.endswith(f"/{top}") else None
    return None


def name_of(path: str | os.PathLike) -> str:
    """Returns what a user calls a path: the URL of which it is a copy, or the path itself."""
    return address_of(path) or os.fspath(path)


def addressed_folder(kind: str, name: str, remote: "RemotePath") -> Path:
    """Returns a folder of the cache, which knows of what it holds a copy."""
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
            "a folder that can be written to"
        ) from error
    return folder


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lets one process of this machine work in a folder, while others wait."""
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
            raise DataError(f"{source} was written anew while it was read: run the same again")
        part.replace(target)
    except FileNotFoundError as error:
        raise DataError(f"{source} was removed while it was read") from error
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def _check_names(remote: "RemotePath", names: Iterable[str]) -> None:
    """Refuses the names of objects that would lead out of the folder that they are copied to."""
    for name in names:
        if name and not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise DataError(
                f"{remote} holds {name!r}, which cannot be the name of a file here: rename it"
            )


def _is_whole(path: Path, expected: "ObjectInfo") -> bool:
    return path.is_file() and path.stat().st_size == expected.st_size


def _check_space(remote: "RemotePath", home: Path, size: int) -> None:
    disk = next(folder for folder in home.parents if folder.is_dir())
    free = shutil.disk_usage(disk).free
    if size > free:
        raise DataError(
            f"{remote}: {size / 1e9:.2f} GB are to be copied to {home.parent}, which has "
            f"{free / 1e9:.2f} GB free: free some, or set {CACHE} to a folder with more"
        )
