"""Paths on this machine: a URL in the place of one is refused before anything is created."""

import os
import re
from pathlib import Path

from jaxformer.errors import check_argument

# Two letters at least: "C:/" is a drive. A Path has made one slash of two.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike, name: str) -> Path:
    """Returns a path with its "~" resolved.

    Args:
        path: As the user gave it.
        name: What the user calls it, for the message: "run_dir".

    Raises:
        ArgumentError: It is no path, or a URL such as gs://bucket/folder.
    """
    check_argument(name, path, isinstance(path, str | os.PathLike), "a path")
    here = _SCHEME.match(os.fspath(path)) is None
    expected = "a path on this machine: URLs are not read or written; copy the files, or mount them"
    check_argument(name, str(path), here, expected)
    return Path(path).expanduser()
