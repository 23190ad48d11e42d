"""Digests of files, by which damage is told."""

import hashlib
import os


def sha256_of(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal, reading it piece by piece."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
