"""Tables: rows with named columns, in any common format."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from jaxformer.data.files.arrow import read_arrow, read_parquet
from jaxformer.data.files.find import COMPRESSED, ending_of, find_files, is_glob
from jaxformer.data.files.json_rows import read_json, read_json_lines
from jaxformer.data.files.lines import Malformed, map_or_report, numbered_lines, text_lines
from jaxformer.data.files.record import Record, table_line
from jaxformer.errors import DataError
from jaxformer.io.paths import any_path

_LONGEST_FIELD = 1 << 30  # of a .csv file, in characters


class TableOptions(NamedTuple):
    """How the rows of a table are read, see `read_records`."""

    header: bool = True
    columns: Sequence[str] | None = None
    malformed: Malformed | None = None


def read_records(
    path: str | os.PathLike,
    header: bool = True,
    columns: Sequence[str] | None = None,
    malformed: Malformed | None = None,
) -> Iterator[Record]:
    """Yields the rows of a table one after the other, without holding all of it in memory.

    The ending of a file determines its format. .tsv and .txt: fields between tabs, in which
    quotation marks are ordinary characters (as in GLUE's files); .csv: fields between commas,
    quoted where needed; .jsonl: one object per line; .json: the same, or a list of objects;
    .parquet and .arrow (an IPC file or stream), which need pyarrow. Text may be compressed:
    .csv.gz, .jsonl.zst.

    A folder or a glob means all of its tables, in the order of their names. A folder may be one
    that `datasets.save_to_disk` wrote, or a data set of the Hugging Face hub. The numbers in a
    ClassLabel column of `datasets` become the names, and -1 becomes None.

    Args:
        path: The file, the folder or the glob.
        header: The first line of a .tsv, .txt or .csv file names the columns; without it they
            are called "0", "1", ...
        columns: The columns that are needed; others are left out if that saves time. None: all
            columns.
        malformed: Receives a message for each line of a .tsv, .txt or .csv file that has another
            number of fields than the first, each of a .tsv or .txt file that is not text, and each
            line or item of a .jsonl or .json file that is not an object, which are left out;
            None: such a line is an error.

    Returns:
        The rows, which are read lazily.

    Raises:
        DataError: The file cannot be read; names the file, the line and the fault.
    """
    path = any_path(path, "path")
    options = TableOptions(header, columns, malformed)
    if ending_of(path) in _READERS and not path.is_dir() and not is_glob(path):
        return read_table(path, options)
    files = [file.path for file in find_files(path, TABLES)]
    for file in files:
        _reader_of(file)  # an unknown ending is an error before any row is read
    return (record for file in files for record in read_table(file, options))


def read_table(path: Path, options: TableOptions) -> Iterator[Record]:
    """Returns the rows of one file, see `read_records`."""
    return _reader_of(path)(path, options)


def _reader_of(path: Path) -> Callable[..., Iterator[Record]]:
    ending = ending_of(path)
    if ending not in _READERS:
        raise DataError(
            f"{path}: cannot tell the format from the ending {ending!r}; it must be one of "
            f"{', '.join(_READERS)}, or one of these and {' or '.join(COMPRESSED)}"
        )
    return _READERS[ending]


def _tab_separated(path: Path, options: TableOptions) -> Iterator[tuple[int, list[str]]]:
    for number, line in numbered_lines(path, options.malformed):
        if line.strip("\r\n"):
            yield number, line.rstrip("\r\n").split("\t")


def _comma_separated(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)  # the module's own limit is shorter than a document
    rows = csv.reader(text_lines(path), strict=True)
    first = 1
    try:
        for fields in rows:
            if fields:
                yield first, fields
            first = rows.line_num + 1  # a quoted field may hold several lines
    except csv.Error as error:
        raise DataError(f"{path}:{first}: not valid CSV: {error}") from error


def _named(
    path: Path, rows: Iterable[tuple[int, list[str]]], options: TableOptions
) -> Iterator[Record]:
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return
    number, names = first
    if not options.header:
        rows = chain([first], rows)
        names = list(map(str, range(len(names))))
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise DataError(f"{path}:{number}: two columns are called {twice[0]!r}: rename one")

    def named(row: tuple[int, list[str]]) -> Record:
        number, fields = row
        check_width(f"{path}:{number}", fields, len(names))
        return table_line(path, number, dict(zip(names, fields, strict=True)))

    yield from map_or_report(named, rows, options.malformed)


def check_width(where: str, fields: list[str], width: int) -> None:
    """Raises DataError unless a line has as many fields as the first."""
    if len(fields) != width:
        shown = " | ".join(fields)[:80]
        raise DataError(
            f"{where}: {len(fields)} fields where the file's first line has {width}: {shown}"
        )


_READERS: dict[str, Callable[[Path, TableOptions], Iterator[Record]]] = {
    ".csv": lambda path, options: _named(path, _comma_separated(path), options),
    ".json": lambda path, options: read_json(path, options.malformed),
    ".jsonl": lambda path, options: read_json_lines(path, options.malformed),
    ".parquet": lambda path, options: read_parquet(path, options.columns),
    ".tsv": lambda path, options: _named(path, _tab_separated(path, options), options),
    ".txt": lambda path, options: _named(path, _tab_separated(path, options), options),
    ".arrow": lambda path, options: read_arrow(path, options.columns),
}
TABLES = tuple(ending for ending in _READERS if ending != ".txt")
"""The endings of the files of a folder that are tables."""
