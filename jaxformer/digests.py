"""Digests of files: what says, bit for bit, whether a file is still what was written."""

import hashlib
from pathlib import Path


def sha256_of(path: str | Path) -> str:
    """Returns the SHA-256 of a file's bytes in hexadecimal, without holding the file in memory.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be read.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
