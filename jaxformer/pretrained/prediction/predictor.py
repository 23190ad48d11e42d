"""What a model's head predicts for the rows of a table: the interface."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.data.files.record import Record
from jaxformer.errors import DataError
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.batches import Batches
from jaxformer.pretrained.prediction.reader import Reader, Tokens

Row = dict[str, Any]
TEXT_COLUMNS = (
    ("text",), ("sentence",), ("sentence1", "sentence2"), ("premise", "hypothesis"),
    ("question1", "question2"), ("question", "sentence"), ("text", "text_pair"),
)  # fmt: skip
"""The columns of texts that are recognised, more usual ones first."""


class Subject(NamedTuple):
    """A model and how it reads."""

    pretrained: Pretrained
    reader: Reader
    labels: tuple[str, ...]
    """The names of the labels, in the order of their numbers."""
    text: tuple[str, ...] | None
    """The columns of the text; None: they are recognised by their names."""
    batch_size: int


class Predictor(abc.ABC):
    """Predicts something for rows of a table.

    Attributes:
        names: The names of what was predicted; empty before the first row.
        cut: How many rows were too long so far, and were cut.
        count: How many rows there were so far.
    """

    def __init__(self, subject: Subject):
        self.subject, self.reader = subject, subject.reader
        self.names: tuple[str, ...] = ()
        self.cut = self.count = 0

    def predict(self, records: Sequence[Record]) -> list[Row]:
        """Returns what is predicted for each row, by the names of the columns.

        Args:
            records: The rows.

        Raises:
            DataError: A row lacks a column, or holds something else than text.
        """
        if not records:
            return []
        rows = self._rows(records)
        self.count += len(rows)
        self.names = tuple(rows[0])
        return rows

    def check(self, record: Record) -> None:
        """Checks that a row has what is read.

        Args:
            record: The row.

        Raises:
            DataError: It lacks a column, or holds something else than text; names its place.
        """
        self._texts([record])

    @abc.abstractmethod
    def _rows(self, records: Sequence[Record]) -> list[Row]:
        """What is predicted for at least one row."""

    def _batches(self, function: Callable) -> Batches:
        return Batches(self.subject.pretrained, function, self.subject.batch_size)

    def _tokens_run(self, batches: Batches, rows: Sequence[Tokens]) -> list[tuple[Any, int]]:
        """The results of rows of tokens; counts those that were cut."""
        self.cut += sum(row.cut for row in rows)
        sizes = [len(row.ids) for row in rows]
        return batches(rows, sizes, self.reader.arrays, self.reader.max_length)

    def _texts(self, records: Sequence[Record]) -> list[tuple[str, ...]]:
        columns = self.subject.text or recognised(records[0], TEXT_COLUMNS)
        return [tuple(record.text(column) for column in columns) for record in records]


def recognised(record: Record, choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the columns to read: the first of the choices that a table has, or its only one.

    Args:
        record: A row of the table.
        choices: The names of columns that are read together.

    Raises:
        DataError: There is none of them.
    """
    columns = tuple(record.values)
    found = [choice for choice in choices if set(choice) <= set(columns)]
    pairs = [choice for choice in found if len(choice) == 2]
    if found or len(columns) == 1:
        return [*pairs, *found, columns][0]
    known = ", ".join(" and ".join(choice) for choice in choices)
    raise DataError(
        f"{record.where}: --text names the column of the text (or two, of a pair), of "
        f"{', '.join(map(repr, columns))}; without it, {known} are recognised"
    )


def number(value: Any) -> float:
    """Returns a float32 as the shortest decimal number that rounds to it."""
    return float(str(np.float32(value)))
