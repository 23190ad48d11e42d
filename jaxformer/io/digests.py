"""SHA-256 digests of files, stored next to them in the format of sha256sum to detect damage."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from jaxformer.errors import DataError
from jaxformer.io.files import ordinary_file, read_bytes, replacing
from jaxformer.io.paths import is_remote

DIGESTS = "SHA256SUMS"
"""The name of the file with the digests of a folder."""


def sha256_of(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal, reading it in chunks."""
    if is_remote(path):
        return path.sha256()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def md5_of(path: Path) -> str:
    """Returns the MD5 of a file in hexadecimal, the digest that object stores report."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def write_digests(record: Path, names: Iterable[str]) -> None:
    """Writes the digests of some files in the format of ``sha256sum --check``."""
    lines = [f"{sha256_of(record.with_name(name))}  {name}\n" for name in sorted(names)]
    with replacing(record) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def add_digests(record: Path, names: Iterable[str]) -> None:
    """Writes digests for files of earlier versions, which had none, if the folder is writable."""
    if not record.exists():
        with suppress(OSError, DataError):  # the folder may be read-only
            write_digests(record, names)


def check_digests(record: Path, names: Iterable[str]) -> None:
    """Verifies files against the digests that `write_digests` wrote."""
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
