"""The interface of predictors for rows of a table."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxformer.data.files.record import Record, recognised
from jaxformer.data.tasks.sequences import EncodedText
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.batches import Batches
from jaxformer.pretrained.prediction.reader import Reader

Prediction = dict[str, Any]


class Subject(NamedTuple):
    """A model, its reader, and the columns to read."""

    pretrained: Pretrained
    reader: Reader
    text: tuple[str, ...] | None
    """The columns of the text; None: recognised by name."""
    batch_size: int


class Predictor(abc.ABC):
    """The base of predictors for rows of a table.

    Attributes:
        names: The names of the predicted columns; empty before the first row.
        cut: Number of rows truncated so far.
        count: Number of rows read so far.
    """

    def __init__(self, subject: Subject):
        self.subject, self.reader = subject, subject.reader
        self.names: tuple[str, ...] = ()
        self.cut = self.count = 0

    def predict(self, records: Sequence[Record]) -> list[Prediction]:
        """Returns the predictions for each row, by column."""
        if not records:
            return []
        rows = self._rows(records)
        self.count += len(rows)
        self.names = tuple(rows[0])
        return rows

    def check(self, record: Record) -> None:
        """Checks that a row has the required columns."""
        self._texts([record])

    @abc.abstractmethod
    def _rows(self, records: Sequence[Record]) -> list[Prediction]:
        """Returns the predictions for a non-empty list of rows."""

    def _batches(self, function: Callable) -> Batches:
        return Batches(self.subject.pretrained, function, self.subject.batch_size)

    def _tokens_run(self, batches: Batches, rows: Sequence[EncodedText]) -> list[tuple[Any, int]]:
        """Returns the results for rows of tokens, and counts truncated rows."""
        self.cut += sum(row.cut for row in rows)
        sizes = [len(row.ids) for row in rows]
        return batches(rows, sizes, self.reader.arrays, self.reader.max_length)

    def _texts(self, records: Sequence[Record]) -> list[tuple[str, ...]]:
        columns = self.subject.text or recognised(records[0], self.reader.columns, "--text")
        return [tuple(record.text(column) for column in columns) for record in records]


class RowPredictor(Predictor):
    """Predicts from a text, a pair of texts or a file.

    Args:
        subject: The model and its reader.
        function: The computation for a batch, from the model and its inputs.
        prediction: Makes the prediction for a row from its result.
    """

    def __init__(
        self, subject: Subject, function: Callable, prediction: Callable[[Any], Prediction]
    ):
        super().__init__(subject)
        self._compute, self._prediction = self._batches(function), prediction

    def _rows(self, records):
        tokens = self.reader.encode(self._texts(records))
        return [self._prediction(found) for found, _ in self._tokens_run(self._compute, tokens)]
