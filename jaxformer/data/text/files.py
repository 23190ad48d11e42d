"""Documents in files: text, and tables with a column of text."""

import abc
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Literal

from jaxformer.checks import check_types
from jaxformer.data.files.find import (
    COMPRESSED,
    FoundFile,
    digests,
    ending_of,
    find_files,
    find_matching,
    stamps,
)
from jaxformer.data.files.json_rows import read_json_lines
from jaxformer.data.files.lines import opened, text_lines
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import TABLES, TableOptions, read_table
from jaxformer.data.text.sources import Document, TextSource, digest_of
from jaxformer.errors import DataError
from jaxformer.io.files import read_bytes

# Approximate bytes of text per byte of these files.
_DENSE, _RATIO = (*COMPRESSED, ".parquet"), 3


@dataclass(frozen=True)
class FileSource(TextSource, abc.ABC):
    """Documents in files."""

    @abc.abstractmethod
    def files(self) -> list[FoundFile]:
        """Returns the files, ordered by name."""

    @abc.abstractmethod
    def read(self, file: FoundFile) -> Iterator[Document]:
        """Yields the documents of one file."""

    def documents(self):
        for file in self.files():
            yield from self.read(file)

    def num_bytes(self):
        sizes = ((file.path, file.stat().st_size) for file in self.files())
        return sum(size * (_RATIO if path.suffix in _DENSE else 1) for path, size in sizes)

    def fingerprint(self) -> str:
        """Returns a digest of the options and of the files' names and contents."""
        return digest_of([*self._options(), *digests(self.files())])

    def former_fingerprint(self) -> str:
        """Returns a digest of the options and the files' names, sizes and modification times."""
        return digest_of([*self._options(), *stamps(self.files())])

    def _options(self) -> list[str]:
        """The class and the fields that determine what is read from the files."""
        names = [field.name for field in fields(self) if field.name not in ("path", "pattern")]
        return [type(self).__name__, *(getattr(self, name) for name in names)]


@dataclass(frozen=True)
class Files(FileSource):
    """Files of any supported format: a file, a folder or a glob.

    Text files are .txt, .txt.gz and .txt.zst. Tables, with a text in each row, are .parquet and
    .arrow, and .jsonl, .json, .csv and .tsv, which may be compressed as well; a folder may hold
    data sets that `datasets.save_to_disk` wrote. A file with any other ending is read as text if a
    path or a glob names it, and is left out of a folder.
    """

    path: str
    """A file, a folder (searched recursively), or a glob such as "books/**/*.txt"."""

    field: str = "text"
    """The column or key under which a row of a table has its text."""

    sample_by: Literal["document", "paragraph", "line"] = "document"
    """The documents of a text file: the whole file, each paragraph (which ends with an empty line),
    or each line.
    """

    def __post_init__(self):
        check_types(self)

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether this source reads a path that is given without a source's name; it reads any
        path.
        """
        del path
        return True

    def files(self):
        return find_files(self.path, (*TABLES, ".txt"))

    def read(self, file):
        if ending_of(file.path) in TABLES:
            records = read_table(file.path, TableOptions(columns=(self.field,)))
            return _rows(file, records, self.field)
        return {"document": _whole, "paragraph": _paragraphs, "line": _lines}[self.sample_by](file)


@dataclass(frozen=True)
class TextFiles(FileSource):
    """UTF-8 text files, one document each: a file, a folder or a glob; may be compressed."""

    path: str
    """A file, a folder (searched recursively), or a glob such as "books/**/*.txt"."""

    pattern: str = "*.txt"
    """The pattern of the files in a folder; it has no effect on a file or a glob."""

    def files(self):
        return find_matching(self.path, self.pattern)

    def read(self, file):
        return _whole(file)


@dataclass(frozen=True)
class JsonLines(FileSource):
    """JSON lines: each line an object with one document's text in a field."""

    path: str
    """A file, a folder (searched recursively for `pattern`), or a glob."""

    field: str = "text"
    """The key under which a line has its text."""

    pattern: str = "*.jsonl"
    """The pattern of the files in a folder; it has no effect on a file or a glob."""

    def files(self):
        return find_matching(self.path, self.pattern)

    def read(self, file):
        return _rows(file, read_json_lines(file.path), self.field)


def _rows(file: FoundFile, records: Iterator[Record], field: str) -> Iterator[Document]:
    for record in records:
        yield Document(f"{file.name}:{record.number}", record.text(field))


def _whole(file: FoundFile) -> Iterator[Document]:
    # Null bytes are valid UTF-8, but not text.
    remedy = "convert the file, or leave it out of the path"
    content = _content(file.path)
    if (place := content.find(b"\0")) >= 0:
        raise DataError(f"{file.path}: not text: byte {place} is null; {remedy}")
    try:
        yield Document(file.name, content.decode().removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise DataError(f"{file.path}: not UTF-8 at byte {error.start}; {remedy}") from error


def _content(path: Path) -> bytes:
    if path.suffix.lower() not in COMPRESSED:
        return read_bytes(path)
    with opened(path) as stream:
        return stream.read()


def _lines(file: FoundFile) -> Iterator[Document]:
    for number, line in enumerate(text_lines(file.path), start=1):
        yield Document(f"{file.name}:{number}", line.rstrip("\r\n"))


def _paragraphs(file: FoundFile) -> Iterator[Document]:
    lines = enumerate(text_lines(file.path), start=1)
    for blank, group in groupby(lines, key=lambda line: not line[1].strip()):
        if not blank:
            numbers, paragraph = zip(*group, strict=True)
            yield Document(f"{file.name}:{numbers[0]}", "".join(paragraph).rstrip("\r\n"))
