"""Paths of object stores: ``gs://bucket/name`` and ``s3://bucket/name``.

An object appears once its upload is complete. Stores have no folders, only common name prefixes,
and cannot rename objects, only copy and delete them.
"""

import base64
import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import fsspec
from etils.epath.gpath import PosixGPath

from jaxformer.errors import ConfigError, StorageError
from jaxformer.io.attempts import attempt, patience

_PATIENCE_AT_START = 20.0
_PIECE = 8 << 20
_MD5 = re.compile("[0-9a-f]{32}")
# Writes of other processes must be visible.
for _scheme in ("s3", "gs", "gcs"):
    fsspec.config.conf.setdefault(_scheme, {}).setdefault("use_listings_cache", False)
# `attempt` and s3fs retry; retries in botocore would multiply both.
fsspec.config.conf["s3"].setdefault("config_kwargs", {"retries": {"total_max_attempts": 1}})

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ObjectInfo:
    """The metadata of an object."""

    st_size: int
    """Bytes."""
    etag: str
    """A version identifier, which changes with the contents."""
    mtime: float
    """Seconds since 1970; 0 if unknown."""
    is_directory: bool = False
    md5: str = ""
    """The MD5 of the contents in hexadecimal; "" if unknown."""

    @property
    def length(self) -> int:
        """The size, under etils' name for it."""
        return self.st_size


class RemotePath(PosixGPath):
    """A path in an object store with the methods of `pathlib.Path` that the package uses.

    Every method retries a lost connection before it raises `StorageError`, which is neither an
    `OSError` nor a `ValueError`, so that an unreachable store is not mistaken for a damaged file. A
    missing object raises `FileNotFoundError`, as on a disk.
    """

    @property
    def store(self) -> fsspec.AbstractFileSystem:
        """The file system of the store."""
        return fsspec.filesystem(self._uri_scheme)

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.parts[2]

    def exists(self) -> bool:
        """Whether there is an object with this name or below it."""
        return attempt(self, lambda: self.store.exists(str(self)))

    def is_dir(self) -> bool:
        """Whether there are objects below this path."""
        return attempt(self, lambda: self.store.isdir(str(self)))

    def is_file(self) -> bool:
        """Whether there is an object with this name."""
        return attempt(self, lambda: self.store.isfile(str(self)))

    def is_symlink(self) -> bool:
        """Returns False: stores have no links."""
        return False

    def stat(self) -> ObjectInfo:
        """Returns the size and version of the object."""
        return _info(attempt(self, lambda: self.store.info(str(self))))

    def iterdir(self) -> Iterator["RemotePath"]:
        """Yields the objects and folders directly below."""
        yield from (self / name for name in self.entries())

    def entries(self) -> dict[str, ObjectInfo]:
        """Returns the objects and folders directly below, by name."""
        found = attempt(self, lambda: self.store.ls(str(self), detail=True))
        items = {_key_of(item["name"]): item for item in found}
        below = {key.rpartition("/")[2]: item for key, item in items.items() if key != self._key}
        return {name: _info(below[name]) for name in sorted(below)}

    def matching(self) -> dict["RemotePath", ObjectInfo]:
        """Returns the objects that match the path as a glob pattern, which may contain ``**``."""
        found = attempt(self, lambda: self.store.glob(str(self), detail=True))
        scheme = f"{self._uri_scheme}://"
        pairs = ((f"{scheme}{name.lstrip('/')}", _info(info)) for name, info in found.items())
        return {
            RemotePath(url): info
            for url, info in pairs
            if not (info.is_directory or url.endswith("/"))
        }

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Yields the paths that match a pattern without ``**``."""
        names = attempt(self, lambda: self.store.glob(f"{self}/{pattern}"))
        yield from (self._new(f"{self._uri_scheme}:/{_key_of(name)}") for name in sorted(names))

    def open(self, mode: str = "r", **options: Any) -> IO:
        """Opens the object; written data becomes visible when it is closed."""
        return attempt(self, lambda: self.store.open(str(self), mode, **options))

    def rglob(self, pattern: str) -> Iterator["RemotePath"]:
        """Yields every object below whose name matches the pattern."""
        found = (self / name for name in sorted(self.files()))
        yield from (path for path in found if path.match(pattern))

    def files(self) -> dict[str, ObjectInfo]:
        """Returns every object below by relative name, except for folder markers."""
        found = attempt(self, lambda: self.store.find(str(self), detail=True))
        home = f"{self._key}/"
        pairs = ((f"/{name.lstrip('/')}", info) for name, info in found.items())
        named = ((n, info) for n, info in pairs if n.startswith(home) and not n.endswith("/"))
        return {n.removeprefix(home): _info(info) for n, info in named}

    @property
    def _key(self) -> str:
        return "/" + "/".join(self.parts[2:])

    def read_bytes(self) -> bytes:
        """Returns the contents of the object."""
        return attempt(self, lambda: self.store.cat_file(str(self)))

    def read_range(self, start: int, end: int) -> bytes:
        """Returns the bytes of the object in a range."""
        return attempt(self, lambda: self.store.cat_file(str(self), start=start, end=end))

    def sha256(self) -> str:
        """Returns the SHA-256 of the object in hexadecimal, reading it in chunks."""

        def digest() -> str:
            with self.store.open(str(self), "rb", block_size=_PIECE) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        return attempt(self, digest)

    def read_text(self, encoding: str | None = None) -> str:
        """Returns the contents of the object as text."""
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: bytes) -> int:
        """Writes the object atomically, replacing any existing one."""
        attempt(self, lambda: self.store.pipe_file(str(self), bytes(data)))
        return len(data)

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Writes text to the object atomically."""
        del newline
        self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))
        return len(data)

    def put(self, file: str | os.PathLike) -> None:
        """Uploads a local file; the object appears once the upload is complete."""
        attempt(self, lambda: self.store.put_file(os.fspath(file), str(self)))

    def get(self, file: str | os.PathLike) -> None:
        """Downloads the object to a local file."""
        attempt(self, lambda: self.store.get_file(str(self), os.fspath(file)))

    def unlink(self, missing_ok: bool = False) -> None:
        """Deletes the object."""
        with contextlib.suppress(*((FileNotFoundError,) if missing_ok else ())):
            attempt(self, lambda: self.store.rm_file(str(self)))

    def absolute(self) -> "RemotePath":
        """Returns the path itself: a URL is never relative."""
        return self

    resolve = expanduser = absolute

    def rmtree(self, missing_ok: bool = True) -> None:
        """Deletes every object below."""
        with contextlib.suppress(*((FileNotFoundError,) if missing_ok else ())):
            attempt(self, lambda: self.store.rm(str(self), recursive=True))

    def mkdir(self, mode: Any = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a folder exists once it contains an object."""

    def copy_tree(self, target: "RemotePath") -> None:
        """Copies every object below to another path, within the store."""
        names = sorted(self.files())
        sources = [str(self / name) for name in names]
        copies = [str(target / name) for name in names]
        attempt(self, lambda: self.store.copy(sources, copies))

    def rename(self, target: "RemotePath", first: str | None = None) -> "RemotePath":
        """Copies every object below and then deletes the originals, starting with `first`."""
        self.copy_tree(target)
        if first is not None:
            (self / first).unlink(missing_ok=True)
        self.rmtree()
        return target


def check_writable(folder: RemotePath, name: str) -> None:
    """Checks that a folder can be written to by writing and deleting an object."""
    probe = folder / f".probe-{uuid.uuid4().hex}"

    def there_and_back() -> bool:
        folder.store.pipe_file(str(probe), b"jaxformer")
        same = folder.store.cat_file(str(probe)) == b"jaxformer"
        folder.store.rm_file(str(probe))
        return same

    if not _checked(folder, name, there_and_back):
        raise ConfigError(
            f"{name} = {folder}: the store returned different bytes than were written"
        )


def check_readable(folder: RemotePath, name: str) -> None:
    """Checks that a folder's bucket exists and can be listed."""
    bucket = f"{folder._uri_scheme}://{folder.bucket}"
    _checked(folder, name, lambda: folder.store.ls(bucket))


def _checked(folder: RemotePath, name: str, action: Callable[[], _Result]) -> _Result:
    try:
        return attempt(folder, action, min(patience(), _PATIENCE_AT_START))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{name} = {folder}: must be in a bucket that exists: there is no bucket "
            f"{folder.bucket!r}; create it, or name another one"
        ) from error
    except StorageError as error:
        raise ConfigError(f"{name} = {error}") from error


def _key_of(name: str) -> str:
    return f"/{name.strip('/')}"


def _info(found: dict[str, Any]) -> ObjectInfo:
    """Converts the metadata of the store libraries, which use different keys."""
    changed = found.get("LastModified") or found.get("mtime") or found.get("created") or 0
    if hasattr(changed, "timestamp"):
        changed = changed.timestamp()
    mtime = float(changed) if isinstance(changed, int | float) else 0.0
    tag = found.get("ETag") or found.get("etag") or found.get("generation") or mtime
    # Google Cloud Storage reports base64; the ETag of S3 is the MD5 of single-part uploads.
    google = found.get("md5Hash")
    amazon = str(found.get("ETag")).strip('"')
    md5 = base64.b64decode(google).hex() if google else amazon
    return ObjectInfo(
        st_size=found.get("size") or 0,
        etag=str(tag).strip('"'),
        mtime=mtime,
        is_directory=found.get("type") == "directory",
        md5=md5 if _MD5.fullmatch(md5) else "",
    )
