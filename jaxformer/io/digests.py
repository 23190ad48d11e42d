"""Digests of files, by which damage is told: written beside them, in the form of sha256sum."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file, read_bytes, replacing

DIGESTS = "SHA256SUMS"
"""The file of the digests of a folder."""


def sha256_of(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal, reading it piece by piece."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_digests(record: Path, names: Iterable[str]) -> None:
    """Writes the digests of some files, which ``sha256sum --check`` reads as well.

    Args:
        record: The file to write.
        names: The files, all in the folder of `record`.

    Raises:
        DataError: The disk is full or cannot be written to.
    """
    lines = [f"{sha256_of(record.with_name(name))}  {name}\n" for name in sorted(names)]
    with replacing(record) as aside:
        aside.write_text("".join(lines), encoding="utf-8")


def check_digests(record: Path, names: Iterable[str]) -> None:
    """Compares files with the digests that `write_digests` has written.

    Args:
        record: The digests.
        names: The files that it must list.

    Raises:
        DataError: A file is missing, or other than it was; names the file.
    """
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
