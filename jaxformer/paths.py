"""Paths on this machine: a URL in the place of one is refused before anything is created."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError

# Two letters at least: "C:/" is a drive. A Path has made one slash of two.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")


def local_path(path: str | os.PathLike, name: str) -> Path:
    """Returns a path with its "~" resolved.

    Args:
        path: As the user gave it.
        name: What the user calls it, for the message: "run_dir".

    Raises:
        ConfigError: It is no path, or a URL such as gs://bucket/folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name} = {path!r}: must be a path")
    text = os.fspath(path)
    if scheme := _SCHEME.match(text):
        url = _SCHEME.sub(rf"{scheme[1]}://", text, count=1)
        raise ConfigError(
            f"{name} = {url}: must be a path on this machine: URLs are neither read nor written; "
            "copy the files here, or mount them"
        )
    return Path(os.path.expanduser(text))


def check_local_paths(values: Any, name: str = "") -> None:
    """Checks every `Path` in dictionaries, lists and dataclasses, such as parsed options.

    Raises:
        ConfigError: One is a URL; names where it sits: "data.path".
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
