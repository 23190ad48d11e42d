"""Texts, or pairs of texts, each with a label, several labels or a number."""

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_field, check_fields, optional
from jaxformer.data.bad_rows import map_rows, read_rows
from jaxformer.data.files.lines import Malformed
from jaxformer.data.files.record import TEXT_COLUMNS, Record, recognised
from jaxformer.data.files.tables import read_records
from jaxformer.data.labels import (
    Classes,
    LabelKind,
    LabelSet,
    Number,
    in_order,
    is_set,
    label_of,
    label_set_of,
    names_in,
)
from jaxformer.data.tasks.sequences import SequenceData, SequenceExamples


class LabelledRow(NamedTuple):
    """One row of the file."""

    where: str
    """ "file:line", for messages."""
    texts: tuple[str, ...]
    label: str | tuple[str, ...] | None
    """A tuple if a row may have several; None if the model is to predict it."""


@dataclass(frozen=True)
class LabelledRows(SequenceData[LabelledRow]):
    """Texts, or pairs of texts, with one label each; there is a subclass for each form of storage.

    A row of a batch has "inputs", "segments" and "token_types" int32 [T]: [CLS] a [SEP], or [CLS] a
    [SEP] b [SEP] with token type 1 for the second text; "label" int32 or float32, [labels] if a row
    may have several, and "label_weights" float32.
    """

    label_order: tuple[str, ...] = field(default=(), kw_only=True)
    """The labels in the order of their numbers; empty: those of the training data, sorted."""

    decoder_start: Literal["pad", "end_of_text"] | None = field(default=None, kw_only=True)
    """The first token of an encoder-decoder's decoder (T5: "pad", BART: "end_of_text"), which then
    reads the same row; None: the model has no decoder.
    """

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(4)))

    @property
    def lengths(self) -> dict[str, int]:
        names = ("inputs", "decoder_inputs")[: 1 + (self.decoder_start is not None)]
        return dict.fromkeys(names, self.sequence_length)

    def start_id(self, tokenizer):
        if self.decoder_start is None:
            return None
        return tokenizer.pad_id if self.decoder_start == "pad" else tokenizer.end_of_text_id

    @property
    def head(self) -> str:
        return self.label_kind.head

    @property
    @abc.abstractmethod
    def label_kind(self) -> LabelKind:
        """What the labels mean: `Classes`, `LabelSet` or `Number`."""

    def side_of(self, row: LabelledRow) -> str:
        return "\t".join(row.texts)

    def texts(self, row: LabelledRow) -> tuple[str, ...]:
        return row.texts

    def label_names(self, train):
        return in_order(self.label_kind.names(row.label for row in train), self.label_order)

    def examples(self, rows, tokenizer, labels=()) -> SequenceExamples:
        """Returns rows as arrays; rows without a label have weight 0."""
        if None in (row.label for row in rows):
            kind, weight = self.label_kind, 0.0
            values = np.zeros((len(rows), *kind.shape(labels)), kind.dtype)
        else:
            rows, values = self._with_values(rows, labels)
            weight = 1.0
        texts = self.encoder(tokenizer).encode(
            [row.texts for row in rows], [row.where for row in rows]
        )
        arrays = {"label": values, "label_weights": np.full(len(rows), weight, np.float32)}
        start = self.start_id(tokenizer)
        return SequenceExamples(texts, self.sequence_length, tokenizer.pad_id, arrays, start=start)

    def _with_values(
        self, rows: Sequence[LabelledRow], names: Sequence[str]
    ) -> tuple[list[LabelledRow], np.ndarray]:
        """Returns the rows with valid labels, and their targets."""

        def values(rows: Sequence[LabelledRow]) -> np.ndarray:
            wanted, places = ([getattr(row, x) for row in rows] for x in ("label", "where"))
            return self.label_kind.values(wanted, names, places)

        kept, found = map_rows(values, rows, self.on_bad_row, "labels")
        return kept, np.array(found, self.label_kind.dtype)


@dataclass(frozen=True)
class LabelledText(LabelledRows):
    """Rows of a table: one text or two, and a label or several."""

    train: str = "train.tsv"
    """The training table: .tsv, .csv, .jsonl, .parquet or any other that `read_records` reads."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    text: tuple[str, ...] | None = ("sentence",)
    """The column of the text, or the two columns of a pair; None: recognised by their names
    ("text", "sentence1" and "sentence2", ...), or the only column other than the label."""

    label: str | tuple[str, ...] = "label"
    """The column of the label; or several columns of 0 and 1, one for each label."""

    labels: LabelKind = Classes()
    """What the labels mean: Classes, LabelSet (a row may have several, as in a column of lists) or
    Number."""

    header: bool = True
    """Whether the first line names the columns; otherwise they are called 0, 1, ..."""

    def __post_init__(self):
        super().__post_init__()
        given = self.text is None or len(self.text) in (1, 2)
        check_field(self, "text", given, "one column or two, or None")
        several = len(self._columns) > 1
        fits = bool(self._columns) and not (several and isinstance(self.labels, Number))
        check_field(self, "label", fits, "one column, or several of labels that are 0 or 1")

    @property
    def label_kind(self) -> LabelKind:
        return LabelSet() if len(self._columns) > 1 else self.labels

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    def as_found(self):
        if self.labels != Classes() or len(self._columns) > 1:
            return self
        first = next(iter(read_records(self.train, self.header)), None)
        value = None if first is None else first.values.get(self._columns[0])
        return self if names_in(value) is None else replace(self, labels=LabelSet())

    def label_names(self, train):
        if len(self._columns) > 1:
            return in_order(self._columns, self.label_order)
        return super().label_names(train)

    def read(self, source: str, labelled: bool = True) -> list[LabelledRow]:
        """Returns the rows of a table; unless `labelled`, they need no column of labels."""
        columns = self.text

        def row(record: Record) -> LabelledRow | None:
            nonlocal columns
            if labelled and _is_unlabelled(record, self._columns):
                return None
            columns = columns or recognised(record, TEXT_COLUMNS, "--data.text", self._columns)
            label = self._label(record) if labelled else None
            texts = tuple(record.text(column) for column in columns)
            return LabelledRow(record.where, texts, label)

        def records(malformed: Malformed) -> Iterator[Record]:
            return read_records(source, self.header, malformed=malformed)

        return read_rows(source, row, self.on_bad_row, records)

    def _label(self, record: Record) -> str | tuple[str, ...]:
        if len(self._columns) > 1:
            return tuple(name for name in self._columns if is_set(record, name))
        (column,) = self._columns
        if isinstance(self.labels, LabelSet):
            return label_set_of(record, column)
        label = label_of(record, column)
        self.labels.check(label, record.where)
        return label


def _is_unlabelled(record: Record, columns: tuple[str, ...]) -> bool:
    """Whether a row counts as unlabelled by the convention of its format."""
    if len(columns) > 1:
        # Rows that are not scored in the test set of Jigsaw's toxic comments.
        return {str(record.values.get(name)) for name in columns} == {"-1"}
    (column,) = columns
    value = record.values.get(column, "")
    # The -1 of a ClassLabel column is read as None.
    of_table = value is None and not record.where.endswith(f":{record.number}")
    # In SNLI and MultiNLI: the annotators did not agree.
    return of_table or (column == "gold_label" and value == "-")
