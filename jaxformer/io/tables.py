"""Writes tables row by row and atomically: .csv, .tsv, .jsonl and .parquet."""

import csv
import json
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError, DataError, did_you_mean
from jaxformer.extras import optional_module
from jaxformer.io.files import check_store, replacing
from jaxformer.io.paths import is_remote

Rows = Callable[[], Iterator[dict[str, Any]]]
"""A function that yields the rows of a table, the same ones on each call."""
_CHUNK = 1024


def check_table(path: Path, name: str) -> None:
    """Checks that a table can be written, before any work."""
    check_output(path, name, _WRITERS)
    if path.suffix.lower() == ".parquet":
        optional_module("pyarrow.parquet", f"writing {path}")


def check_output(path: Path, name: str, endings: Collection[str]) -> None:
    """Checks that a file can be written, before any work."""
    ending = path.suffix.lower()
    if ending not in endings:
        hint = did_you_mean(ending, endings)
        raise ConfigError(f"{name} {path}: must end in one of {', '.join(endings)}{hint}")
    check_store(path.parent, name)
    if not is_remote(path) and (path.is_dir() or not path.parent.is_dir()):
        problem = "a folder" if path.is_dir() else f"in {path.parent}, which is not a folder"
        raise ConfigError(f"{name} {path}: must be a file, but is {problem}; name another one")


def write_table(path: Path, rows: Rows) -> None:
    """Writes a table in the format of the file's ending.

    In a .csv or .tsv file, lists and objects are written as JSON, and None and missing columns as
    empty fields.
    """
    with replacing(path) as aside:
        _WRITERS[path.suffix.lower()](path, aside, rows)


def json_line(row: dict[str, Any]) -> str:
    """Returns a row as a line of JSON; values that JSON does not support become strings."""
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


def _json_lines(path: Path, aside: Path, rows: Rows) -> None:
    del path
    with aside.open("w", encoding="utf-8") as file:
        file.writelines(map(json_line, rows()))


def _comma_separated(path: Path, aside: Path, rows: Rows) -> None:
    del path
    columns = _columns(rows)
    with aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_field(row.get(name)) for name in columns] for row in rows())


def _tab_separated(path: Path, aside: Path, rows: Rows) -> None:
    columns = _columns(rows)
    with aside.open("w", encoding="utf-8", newline="") as file:
        file.write("\t".join(columns) + "\n")
        for number, row in enumerate(rows(), start=1):
            fields = [_field(row.get(name)) for name in columns]
            for name, field in zip(columns, fields, strict=True):
                if any(mark in field for mark in "\t\r\n"):
                    raise DataError(
                        f"{path}: row {number}: column {name!r} contains a tab or a newline, "
                        "which a .tsv file cannot represent: name a .csv, .jsonl or .parquet file"
                    )
            file.write("\t".join(fields) + "\n")


def _parquet(path: Path, aside: Path, rows: Rows) -> None:
    arrow = optional_module("pyarrow", f"writing {path}")
    parquet = optional_module("pyarrow.parquet", f"writing {path}")
    try:
        schemas = (
            arrow.Table.from_pylist(_with_equal_columns(chunk)).schema for chunk in _chunks(rows)
        )
        schema = next(schemas)
        for other in schemas:
            schema = arrow.unify_schemas([schema, other], promote_options="permissive")
        with parquet.ParquetWriter(aside, schema) as writer:
            for chunk in _chunks(rows):
                writer.write_table(arrow.Table.from_pylist(chunk, schema))
    except arrow.ArrowException as error:
        raise DataError(
            f"{path}: the rows do not fit in a Parquet file ({error}): name a .jsonl file"
        ) from error


_WRITERS = {
    ".csv": _comma_separated,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
    ".tsv": _tab_separated,
}


def _columns(rows: Rows) -> list[str]:
    """Returns the columns of all rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows() for name in row))


def _chunks(rows: Rows) -> Iterator[list[dict[str, Any]]]:
    remaining = rows()
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk


def _with_equal_columns(chunk: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives all rows of a chunk the same columns: the schema is inferred from the first row."""
    names = dict.fromkeys(name for row in chunk for name in row)
    return [{name: row.get(name) for name in names} for row in chunk]


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
