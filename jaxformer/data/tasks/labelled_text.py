"""Texts, or pairs of texts, with one label each: classification and regression."""

import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.labels import Classes, LabelKind, save_labels
from jaxformer.data.split import train_validation_split
from jaxformer.data.tasks.records import Record, read_records
from jaxformer.data.tasks.sequences import (
    SpecialTokens,
    TokenizedText,
    add_special_tokens,
    check_fit,
    model_inputs,
)
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer
from jaxformer.errors import DataError, check_field


class LabelledRow(NamedTuple):
    """One row of the file."""

    where: str
    """ "file:line", for messages."""
    texts: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class LabelledText(Data):
    """Rows of a table: one text or two, and a label.

    A row of a batch has "inputs", "segments" and "token_types" int32 [T]: [CLS] a [SEP], or
    [CLS] a [SEP] b [SEP] with token type 1 for the second text; "label" int32 or float32, and
    "label_weights" float32.
    """

    train: str = "train.tsv"
    """The training table: .tsv, .csv, .jsonl or .parquet."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    text: tuple[str, ...] = ("sentence",)
    """The column of the text, or the two columns of a pair."""

    label: str = "label"
    """The column of the label."""

    labels: LabelKind = Classes()
    """What the labels mean: Classes or Number."""

    header: bool = True
    """The first line names the columns; without it they are called 0, 1, ..."""

    tokenizer: TokenizerSpec = TrainTokenizer(kind="wordpiece")
    """How text becomes tokens."""

    sequence_length: int = 128
    """The most tokens of a row."""

    truncate: bool = False
    """Cut longer rows, the longer text of a pair first; otherwise they are an error."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "text", len(self.text) in (1, 2), "one column or two")
        check_fields(self, "data", sequence_length=at_least(4))

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads and tokenises the tables; keeps the tokenizer and the labels' names.

        Args:
            folder: The run's folder.

        Returns:
            Both sides of the data, with the tokenizer and the names of the labels.

        Raises:
            DataError: A table cannot be read, lacks a column, or has a label that the training
                data have not, or a row that is too long; names the file and the line.
        """
        train, validation = self._split()
        tokenizer = load_or_train_tokenizer(
            folder, self.tokenizer, (text for row in train for text in row.texts)
        )
        names = self.labels.names(row.label for row in train)
        if names:
            save_labels(folder, names)
        return Datasets(
            self.dataset(self._examples(train, tokenizer, names), "train"),
            self.dataset(self._examples(validation, tokenizer, names), "validation"),
            tokenizer,
            labels=names,
        )

    def validation_examples(self, tokenizer, labels):
        if self.validation is None:
            return None
        return self._examples(self._read(self.validation), tokenizer, labels)

    def _split(self) -> tuple[list[LabelledRow], list[LabelledRow]]:
        rows = self._read(self.train)
        if self.validation is not None:
            return rows, self._read(self.validation)
        # Equal texts fall on the same side.
        texts = ["\t".join(row.texts) for row in rows]
        return train_validation_split(
            rows, texts, self.validation_fraction, self.split_seed, self.train
        )

    def _read(self, path: str) -> list[LabelledRow]:
        rows = [
            LabelledRow(
                record.where,
                tuple(record.text(column) for column in self.text),
                _label(record, self.label),
            )
            for record in read_records(path, self.header)
        ]
        if not rows:
            raise DataError(f"{path} has no rows")
        return rows

    def _examples(
        self, rows: Sequence[LabelledRow], tokenizer: Tokenizer, names: Sequence[str]
    ) -> "LabelledExamples":
        special = SpecialTokens.of(tokenizer)
        columns = zip(*(row.texts for row in rows), strict=True)
        ids = list(zip(*(tokenizer.encode_batch(column) for column in columns), strict=True))
        labels, places = [row.label for row in rows], [row.where for row in rows]
        sizes = [sum(map(len, row)) + 1 + len(row) for row in ids]
        check_fit(sizes, places, self.sequence_length, "data.sequence_length", self.truncate)
        texts = [add_special_tokens(row, special, self.sequence_length) for row in ids]
        values = self.labels.values(labels, names, places)
        return LabelledExamples(texts, values, self.sequence_length, tokenizer.pad_id)


class LabelledExamples(ExampleSource):
    """Tokenised texts with their labels.

    Args:
        texts: The rows.
        labels: [rows], int32 or float32.
        length: T, to which rows are padded.
        pad_id: The padding token.
    """

    def __init__(
        self, texts: Sequence[TokenizedText], labels: np.ndarray, length: int, pad_id: int
    ):
        self._texts, self._labels, self._shape = texts, labels, (length, pad_id)

    def __len__(self) -> int:
        return len(self._texts)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns the model's inputs with "label" and "label_weights"."""
        inputs = model_inputs(self._texts[index], *self._shape)
        return inputs | {"label": self._labels[index], "label_weights": np.float32(1)}

    def blank(self) -> Batch:
        """Returns a row of the same shapes whose weight is 0."""
        row = self.read(0, np.random.default_rng(0))
        return row | {"label_weights": np.float32(0)}


def _label(record: Record, column: str) -> str:
    value = record.value(column)
    missing = value is None or value != value or not str(value).strip()  # NaN differs from itself
    if missing or not isinstance(value, str | int | float):
        shown = reprlib.repr(value)
        raise DataError(
            f"{record.where}: no label: column {column!r} holds {shown}; give one, or leave the "
            "row out"
        )
    return str(value)
