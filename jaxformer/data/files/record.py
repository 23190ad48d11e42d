"""A row of a table, a file stored in one, and the columns that are recognised."""

import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxformer.data.files.lines import encodable
from jaxformer.errors import DataError

TEXT_COLUMNS = (
    ("text",), ("sentence",), ("sentence1", "sentence2"), ("premise", "hypothesis"),
    ("question1", "question2"), ("question", "sentence"), ("text", "text_pair"),
)  # fmt: skip
"""The recognised columns of texts, the most usual ones first."""

IMAGE_COLUMNS = (
    ("image",), ("file",), ("path",), ("file_name",), ("filename",), ("image_path",),
    ("file_path",), ("filepath",), ("img",),
)  # fmt: skip
"""The columns with the paths of images."""


class Record(NamedTuple):
    """One row of a table."""

    where: str
    """ "file:line" or "file, row 3", for messages."""
    values: dict[str, Any]
    """The value of each column, by its name."""
    number: int = 0
    """Its number in the file (line or row), counted from 1."""

    def text(self, column: str) -> str:
        """Returns the string in a column; raises DataError if it is missing or anything else."""
        value = self.value(column)
        if not isinstance(value, str):
            shown = reprlib.repr(value)
            raise DataError(f"{self.where}: column {column!r} holds {shown}, not a text")
        return encodable(value, f"{self.where}: column {column!r}")

    def value(self, column: str) -> Any:
        """Returns the value of a column; raises DataError if it is missing."""
        if column not in self.values:
            held = ", ".join(map(repr, self.values)) or "none"
            raise DataError(f"{self.where}: no column {column!r}; the columns are: {held}")
        return self.values[column]


class EmbeddedFile(NamedTuple):
    """The bytes of a file in a table, as `datasets` stores images and sounds in Parquet."""

    where: str
    """The place of the file, for messages."""
    content: bytes

    def __str__(self):
        return self.where


def table_row(path: object, number: int, values: dict[str, Any]) -> Record:
    """Returns a row that is identified by its number, in a table without lines."""
    return Record(f"{path}, row {number}", values, number)


def table_line(path: object, number: int, values: dict[str, Any]) -> Record:
    """Returns a row that is identified by its line."""
    return Record(f"{path}:{number}", values, number)


def recognised(
    record: Record, choices: Sequence[tuple[str, ...]], option: str, others: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the columns to read: the first of the choices that a table has, or its only
    column.
    """
    columns = tuple(name for name in record.values if name not in others)
    found = [choice for choice in choices if set(choice) <= set(columns)]
    pairs = [choice for choice in found if len(choice) == 2]
    if found or len(columns) == 1:
        return [*pairs, *found, columns][0]
    known = ", ".join(" and ".join(choice) for choice in choices)
    raise DataError(
        f"{record.where}: {option} must name the column to read (or two, of a pair of texts), of "
        f"{', '.join(map(repr, columns))}; without it, {known} are recognised"
    )
