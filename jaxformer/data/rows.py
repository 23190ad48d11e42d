"""Data of complete rows: texts with labels or tags, questions, pairs, conversations."""

import abc
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from jaxformer.data.bad_rows import OnBadRow
from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import ExampleSource
from jaxformer.data.labels import save_labels
from jaxformer.data.split import train_validation_split
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import DataError

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class RowData(Data, Generic[Row]):
    """Data of complete rows; there is a subclass for each kind of row, with a field `tokenizer`.

    A subclass defines `read` if the rows come from the fields `train` and `validation`, and
    otherwise `origin`, `train_rows` and `validation_rows`.
    """

    on_bad_row: OnBadRow = "stop"
    """What happens to a row that cannot be used: it stops the run, or is left out (skip); more than
    5 % of such rows stop it in either case."""

    def read(self, source: Any) -> list[Row]:
        """Returns the rows of a file or another source."""
        raise NotImplementedError

    @abc.abstractmethod
    def side_of(self, row: Row) -> Hashable:
        """Returns a text that determines a row's side: rows with the same text stay together."""

    @abc.abstractmethod
    def texts(self, row: Row) -> Iterable[str]:
        """Returns the texts of a row, on which a tokenizer may be trained."""

    @property
    def origin(self) -> str:
        """Where the training rows come from, for messages."""
        return self.train

    def train_rows(self) -> list[Row]:
        """Returns the training rows, including those that may be held out."""
        return self.read(self.train)

    def validation_rows(self) -> list[Row] | None:
        """Returns the rows for validation; None if they are a share of the training rows."""
        return None if self.validation is None else self.read(self.validation)

    def split(self) -> tuple[list[Row], list[Row]]:
        """Returns the rows for training and those for validation."""
        rows = self.train_rows()
        validation = self.validation_rows()
        if validation is not None:
            return rows, validation
        names = [self.side_of(row) for row in rows]
        return train_validation_split(
            rows, names, self.validation_fraction, self.split_seed, self.origin
        )

    def run_tokenizer(self, folder: str | os.PathLike, train: Sequence[Row]) -> Tokenizer:
        """Returns the run's tokenizer, trained on the training rows if it has to be trained."""
        texts = (text for row in train for text in self.texts(row))
        return load_or_train_tokenizer(folder, self.tokenizer, texts)


def too_long_error(
    sizes: Sequence[int], places: Sequence[str], limit: int, field: str, what: str, remedy: str
) -> DataError:
    """Returns the error about rows, some of which have more than `limit` tokens."""
    long = [number for number, size in enumerate(sizes) if size > limit]
    return DataError(
        f"{places[long[0]]}: {sizes[long[0]]} tokens, more than {field} = {limit}, and so have "
        f"{len(long):,} of {len(sizes):,} {what}: set {field} to {max(sizes)}, which the model's "
        f"positions must allow, or {remedy}"
    )


class TaskData(RowData[Row]):
    """Data of rows that become examples one by one, optionally with labels."""

    def label_names(self, train: Sequence[Row]) -> tuple[str, ...]:
        """Returns the names of the labels in the order of their numbers; empty without labels."""
        del train
        return ()

    def training_labels(self) -> tuple[str, ...]:
        return self.label_names(self.split()[0])

    @abc.abstractmethod
    def examples(
        self, rows: Sequence[Row], tokenizer: Tokenizer, labels: Sequence[str] = ()
    ) -> ExampleSource:
        """Returns rows as arrays."""

    def training_examples(
        self, rows: Sequence[Row], tokenizer: Tokenizer, labels: Sequence[str]
    ) -> ExampleSource:
        """Returns the training rows as arrays, which may vary from epoch to epoch."""
        return self.examples(rows, tokenizer, labels)

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads and tokenises the rows; keeps the tokenizer and the labels' names."""
        train, validation = self.split()
        tokenizer = self.run_tokenizer(folder, train) if self.has_text else None
        labels = self.label_names(train)
        if labels:
            save_labels(folder, labels)
        return Datasets(
            self.dataset(self.training_examples(train, tokenizer, labels), "train"),
            self.dataset(self.examples(validation, tokenizer, labels), "validation"),
            tokenizer,
            labels=labels,
        )

    def validation_examples(self, tokenizer, labels):
        rows = self.validation_rows()
        return None if rows is None else self.examples(rows, tokenizer, labels)
