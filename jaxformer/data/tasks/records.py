"""Readers of labelled files: tables with named columns, columns of words, parallel text."""

import csv
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.data.text.sources import encodable
from jaxformer.errors import DataError
from jaxformer.extras import optional_module
from jaxformer.io.files import ordinary_file
from jaxformer.io.json_files import parse_json

_LOST = b"\0" * 16  # a block that the file system never wrote


class Record(NamedTuple):
    """One row of a table."""

    where: str
    """ "file:line", for messages."""
    values: dict[str, Any]
    """The value of each column, by its name."""

    def text(self, column: str) -> str:
        """Returns the string in a column.

        Raises:
            DataError: There is no such column, or its value is not a string.
        """
        value = self.value(column)
        if not isinstance(value, str):
            shown = reprlib.repr(value)
            raise DataError(f"{self.where}: column {column!r} holds {shown}, which is no text")
        return encodable(value, f"{self.where}: column {column!r}")

    def value(self, column: str) -> Any:
        """Returns the value of a column.

        Raises:
            DataError: There is no such column; names the columns.
        """
        if column not in self.values:
            held = ", ".join(map(repr, self.values)) or "none"
            raise DataError(f"{self.where}: no column {column!r}; the columns are: {held}")
        return self.values[column]


def read_records(
    path: str | os.PathLike,
    header: bool = True,
    malformed: Callable[[str], None] | None = None,
) -> Iterator[Record]:
    """Yields the rows of a table, whose format follows from the file's ending.

    .tsv and .txt: fields between tabs, in which quotation marks are ordinary characters (as in
    GLUE's files); .csv: fields between commas, quoted where needed; .jsonl: one object per line;
    .parquet: Apache Parquet, which needs pyarrow.

    Args:
        path: The file.
        header: The first line of a .tsv, .txt or .csv file names the columns; without it they
            are called "0", "1", ...
        malformed: Receives a message for each line of such a file that has another number of
            fields than the first, which is left out; None: such a line is an error.

    Returns:
        The rows, read as they are asked for.

    Raises:
        DataError: The file cannot be read; names the file, the line and what is wrong.
    """
    path = Path(os.path.expanduser(path))
    readers = {
        ".csv": lambda: _named(_comma_separated(path), header, malformed),
        ".json": lambda: _json_lines(path),
        ".jsonl": lambda: _json_lines(path),
        ".parquet": lambda: _parquet(path),
        ".tsv": lambda: _named(_tab_separated(path), header, malformed),
        ".txt": lambda: _named(_tab_separated(path), header, malformed),
    }
    if path.suffix.lower() not in readers:
        raise DataError(
            f"{path}: cannot tell the format from the ending {path.suffix!r}; it must be one of "
            f"{', '.join(readers)}"
        )
    return readers[path.suffix.lower()]()


class Word(NamedTuple):
    """One line of a column file."""

    where: str
    """ "file:line", for messages."""
    fields: list[str]
    """The fields between blanks: the word, ..., its tag."""


def read_columns(path: str | os.PathLike) -> Iterator[list[Word]]:
    """Yields the sentences of a column file as CoNLL's shared tasks distribute them.

    A line has a word's fields, between blanks or tabs; an empty line ends a sentence. Lines that
    begin with -DOCSTART- are left out.

    Raises:
        DataError: The file cannot be read, or a line has other than the first one's number of
            fields; names the file and the line.
    """
    sentence, width = [], None
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split()
        if fields and not line.startswith("-DOCSTART-"):
            width = width or len(fields)
            _check_width(f"{path}:{number}", fields, width)
            sentence.append(Word(f"{path}:{number}", fields))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def read_parallel(source: str | os.PathLike, target: str | os.PathLike) -> list[tuple[str, str]]:
    """Returns the pairs of lines of two files, one translating the other.

    Raises:
        DataError: A file cannot be read, or they have different numbers of lines.
    """
    sides = [[line.rstrip("\r\n") for line in _lines(path)] for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source} has {len(sides[0])} lines and {target} has {len(sides[1])}: each line of "
            "one must translate the same line of the other"
        )
    return list(zip(*sides, strict=True))


def _lines(path: str | os.PathLike) -> Iterator[str]:
    """Yields the lines of a text file, which end only at a newline.

    Raises:
        DataError: The file cannot be read, or a line is no text; names the line.
    """
    number = 1
    try:
        with open(ordinary_file(path), "rb") as file:
            for number, line in enumerate(file, start=1):
                if _LOST in line:
                    raise DataError(f"{path}:{number}: not text: it holds a run of null bytes")
                text = line.decode()
                yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: not UTF-8 ({error.reason}): convert the file") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def _tab_separated(path: Path) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip("\r\n"):
            yield f"{path}:{number}", line.rstrip("\r\n").split("\t")


def _comma_separated(path: Path) -> Iterator[tuple[str, list[str]]]:
    rows, first = csv.reader(_lines(path), strict=True), 1
    try:
        for fields in rows:
            if fields:
                yield f"{path}:{first}", fields
            first = rows.line_num + 1  # a quoted field may hold several lines
    except csv.Error as error:
        raise DataError(f"{path}:{first}: not valid CSV: {error}") from error


def _named(
    rows: Iterable[tuple[str, list[str]]],
    header: bool,
    malformed: Callable[[str], None] | None,
) -> Iterator[Record]:
    names: list[str] | None = None
    for where, fields in rows:
        if names is None:
            names = fields if header else list(map(str, range(len(fields))))
            if twice := sorted({name for name in names if name and names.count(name) > 1}):
                raise DataError(f"{where}: two columns are called {twice[0]!r}: rename one")
            if header:
                continue
        if malformed is not None and len(fields) != len(names):
            malformed(_wrong_width(where, fields, len(names)))
            continue
        _check_width(where, fields, len(names))
        yield Record(where, dict(zip(names, fields, strict=True)))


def _check_width(where: str, fields: list[str], width: int) -> None:
    if len(fields) != width:
        raise DataError(_wrong_width(where, fields, width))


def _wrong_width(where: str, fields: list[str], width: int) -> str:
    shown = " | ".join(fields)[:80]
    return f"{where}: {len(fields)} fields where the file's first line has {width}: {shown}"


def _json_lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield Record(where, parse_json(line, where))


def _parquet(path: Path) -> Iterator[Record]:
    parquet = optional_module("pyarrow.parquet", f"reading {path}")
    try:
        with parquet.ParquetFile(ordinary_file(path)) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches())
            for number, values in enumerate((row for rows in batches for row in rows), start=1):
                yield Record(f"{path}, row {number}", values)
    except DataError:
        raise
    except Exception as error:  # pyarrow's own errors have many bases
        raise DataError(f"{path}: not a Parquet file that can be read: {error}") from error
