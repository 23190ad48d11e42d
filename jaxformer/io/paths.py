"""User-given paths: local paths, and gs:// and s3:// URLs.

Other URLs are refused before anything is created.
"""

import dataclasses
import os
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from jaxformer.errors import ConfigError, shortened
from jaxformer.extras import optional_module

if TYPE_CHECKING:
    from jaxformer.io.remote import RemotePath

AnyPath: TypeAlias = Union[Path, "RemotePath"]
"""A local path or a path in an object store; both have the methods of `pathlib.Path`."""

SCHEMES = {"gs": "gcsfs", "s3": "s3fs"}
"""The supported URL schemes and the modules that implement them."""
REMOTE_OPTIONS = frozenset({
    "data", "images", "input", "inputs", "out_dir", "output", "prompts", "run_dir", "run_dirs",
})  # fmt: skip
"""The command-line options that accept URLs; all others take local paths."""
# At least two letters, since "C:/" is a drive. `Path` collapses "//" to "/".
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def any_path(path: str | os.PathLike, name: str) -> AnyPath:
    """Returns a local path or a path in an object store."""
    url = url_of(path, name)
    if url is None:
        return Path(os.path.expanduser(os.fspath(path)))
    optional_module(SCHEMES[url.partition(":")[0]], f"{name} = {url}")
    from jaxformer.io.remote import RemotePath

    return RemotePath(url.rstrip("/"))


def url_of(path: str | os.PathLike, name: str) -> str | None:
    """Returns a path as a URL, or None if it is a local path.

    Does not import the libraries of the stores.
    """
    text = os.fspath(path) if isinstance(path, str | PurePath | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(f"{name} = {shortened(path)}: must be a path")
    if not (found := _SCHEME.match(text)):
        return None
    scheme, rest = found[1], text[found.end() :]
    url = f"{scheme}://{rest}"
    if scheme not in SCHEMES:
        known = " or ".join(f"{scheme}://bucket/..." for scheme in SCHEMES)
        raise ConfigError(
            f"{name} = {url}: must be a local path or {known}; copy the files to one of them"
        )
    if not rest.strip("/"):
        raise ConfigError(f"{name} = {url}: must name a bucket, such as {scheme}://bucket/folder")
    return url


def local_path(path: str | os.PathLike, name: str) -> Path:
    """Returns a local path with "~" expanded; refuses URLs."""
    if (url := url_of(path, name)) is not None:
        raise ConfigError(
            f"{name} = {url}: must be a local path, since URLs are not supported here; copy the "
            "files to this machine, or mount them"
        )
    return Path(os.path.expanduser(os.fspath(path)))


def folder_path(path: str | os.PathLike, name: str) -> AnyPath:
    """Returns `any_path` of a folder, which does not have to exist."""
    folder = any_path(path, name)
    if path == "":
        raise ConfigError(f"{name} = {path!r}: must be the path of a folder")
    if not is_remote(folder) and os.path.exists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"{name} = {folder}: must be a folder, not a file")
    return folder


def run_path(path: str | os.PathLike, name: str) -> AnyPath:
    """Returns `folder_path` of a run or one of its checkpoints, with ".." and links resolved.

    Other libraries interpret ".." differently, and changing a link during training must not
    redirect the run. A path without either is returned unchanged.
    """
    folder = folder_path(path, name)
    if is_remote(folder):
        return folder
    real = os.path.realpath(folder)
    return folder if os.path.join(os.getcwd(), folder) == real else Path(real)


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path is a URL, including one whose "//" was collapsed by `Path`."""
    return _SCHEME.match(os.fspath(path)) is not None


def check_paths(values: Any, name: str = "") -> None:
    """Checks every `Path` in dictionaries, lists and dataclasses, such as parsed options.

    Only those of `REMOTE_OPTIONS` may be URLs.
    """
    if isinstance(values, Path):
        (any_path if name.rpartition(".")[2] in REMOTE_OPTIONS else local_path)(values, name)
    if isinstance(values, list | tuple):
        for part in values:
            check_paths(part, name)
    if dataclasses.is_dataclass(values):
        values = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    if isinstance(values, dict):
        for key, part in values.items():
            check_paths(part, f"{name}.{key}".lstrip("."))
