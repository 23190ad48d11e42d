"""Local paths: a URL in place of one is refused before anything is created."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError, shortened

# Two letters at least: "C:/" is a drive. A Path has made one slash of two.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def local_path(path: str | os.PathLike, name: str) -> Path:
    """Returns a path with its "~" resolved.

    Args:
        path: As the user gave it.
        name: What the user calls it, for the message: "run_dir".

    Returns:
        The path.

    Raises:
        ConfigError: It is not a path, or it is a URL such as gs://bucket/folder.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(f"{name} = {shortened(path)}: must be a path")
    if scheme := _SCHEME.match(text):
        url = _SCHEME.sub(rf"{scheme[1]}://", text, count=1)
        raise ConfigError(
            f"{name} = {url}: must be a path on this machine: URLs are neither read nor written; "
            "copy the files here, or mount them"
        )
    return Path(os.path.expanduser(text))


def folder_path(path: str | os.PathLike, name: str) -> Path:
    """Returns `local_path` of a folder, which need not exist.

    Args:
        path: As the user gave it.
        name: What the user calls it, for the message.

    Returns:
        The path.

    Raises:
        ConfigError: It is not a path, a URL, or the path of a file.
    """
    folder = local_path(path, name)
    if path == "":
        raise ConfigError(f"{name} = {path!r}: must be the path of a folder")
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"{name} = {folder}: must be a folder, not a file")
    return folder


def check_local_paths(values: Any, name: str = "") -> None:
    """Checks every `Path` in dictionaries, lists and dataclasses, such as parsed options.

    Args:
        values: The options, nested at will.
        name: The dotted name of `values` itself.

    Raises:
        ConfigError: One is a URL; names the option, such as "data.path".
    """
    if isinstance(values, Path):
        local_path(values, name)
    if isinstance(values, list | tuple):
        for part in values:
            check_local_paths(part, name)
    if dataclasses.is_dataclass(values):
        values = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    if isinstance(values, dict):
        for key, part in values.items():
            check_local_paths(part, f"{name}.{key}".lstrip("."))
