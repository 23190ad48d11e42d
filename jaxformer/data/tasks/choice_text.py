"""Multiple choice: a context and several endings or answers, one of which is right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_field, check_fields, optional
from jaxformer.data.bad_rows import read_rows
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.files.lines import encodable
from jaxformer.data.files.record import Record
from jaxformer.data.tasks.sequences import EncodedText, SequenceData, model_inputs
from jaxformer.errors import DataError


class ChoiceRow(NamedTuple):
    """One row of the file."""

    where: str
    """ "file:line", for messages."""
    context: str
    choices: tuple[str, ...]
    label: int
    """The number of the right choice, from 0."""


@dataclass(frozen=True)
class ChoiceText(SequenceData[ChoiceRow]):
    """Rows of a table: a context, several choices, and the number of the right one (SWAG).

    All choices of a question are one row of a batch, side by side, each [CLS] context [SEP] choice
    [SEP] in a separate segment with positions from 0. It has "inputs", "segments", "positions"
    and "token_types" int32 [C T], "choice_places" int32 [C], where each choice starts, "choice"
    int32 and "choice_weights" float32.

    References:
        Zellers et al., SWAG (https://arxiv.org/abs/1808.05326).
    """

    train: str = "train.jsonl"
    """The training table: .tsv, .csv, .jsonl, .parquet or any other that `read_records` reads."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    context: str = "sent1"
    """The column of the context."""

    start: str | None = "sent2"
    """The column of a text with which all choices begin, or None."""

    choices: tuple[str, ...] = ("ending0", "ending1", "ending2", "ending3")
    """The columns of the choices, or the one column that has a list of them."""

    label: str = "label"
    """The column of the number of the right choice, from 0."""

    num_choices: int = 4
    """The choices of a row (C)."""

    head = "multiple_choice"

    def __post_init__(self):
        super().__post_init__()
        sizes = {"sequence_length": optional(at_least(4)), "num_choices": at_least(2)}
        check_fields(self, "data", **sizes)
        count = (1, self.num_choices)
        given = len(self.choices) in count
        check_field(self, "choices", given, f"one column, or num_choices = {count[1]} of them")

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.num_choices * self.sequence_length}

    @property
    def text_lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    def side_of(self, row: ChoiceRow) -> str:
        return row.context

    def texts(self, row: ChoiceRow) -> tuple[str, ...]:
        return row.context, *row.choices

    def read(self, source: str) -> list[ChoiceRow]:
        return read_rows(source, self._row, self.on_bad_row)

    def _row(self, record: Record) -> ChoiceRow:
        return ChoiceRow(
            record.where,
            record.text(self.context),
            self._choices(record),
            _number(record, self.label, self.num_choices),
        )

    def _choices(self, record: Record) -> tuple[str, ...]:
        if len(self.choices) > 1:
            found = [record.text(column) for column in self.choices]
        else:
            found = record.value(self.choices[0])
            where = f"{record.where}: column {self.choices}"
            found = list(found) if isinstance(found, list | tuple | np.ndarray) else None
            if found is None or not all(isinstance(text, str) for text in found):
                raise DataError(f"{where} must have a list of texts, the choices")
            found = [encodable(text, where) for text in found]
        if len(found) != self.num_choices:
            raise DataError(
                f"{record.where}: {len(found)} choices: must be data.num_choices = "
                f"{self.num_choices}, as in every row"
            )
        start = "" if self.start is None else record.text(self.start) + " "
        return tuple(start + text for text in found)

    def examples(self, rows, tokenizer, labels=()) -> "ChoiceExamples":
        del labels
        count = self.num_choices
        encoder = self.encoder(tokenizer)
        pairs = [(row.context, choice) for row in rows for choice in row.choices]
        texts = encoder.encode(pairs, [row.where for row in rows for _ in range(count)])
        grouped = [texts[first : first + count] for first in range(0, len(texts), count)]
        return ChoiceExamples(
            grouped, [row.label for row in rows], encoder.length, tokenizer.pad_id
        )


class ChoiceExamples(ExampleSource):
    """Tokenised choices, each padded to a length, with the number of the right one."""

    def __init__(
        self, rows: Sequence[Sequence[EncodedText]], labels: Sequence[int], length: int, pad_id: int
    ):
        self._rows = rows
        self._labels = labels
        self._shape = (length, pad_id)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        length = self._shape[0]
        parts = [model_inputs(text, *self._shape) for text in self._rows[index]]
        for number, part in enumerate(parts):
            part["segments"] *= number + 1
            part["positions"] = np.arange(length, dtype=np.int32)
        row = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return row | {
            "choice_places": length * np.arange(len(parts), dtype=np.int32),
            "choice": np.int32(self._labels[index]),
            "choice_weights": np.float32(1),
        }


def _number(record: Record, column: str, count: int) -> int:
    value = record.value(column)
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) >= count:
        raise DataError(
            f"{record.where}: column {column!r} holds {value!r}: must be the number of the right "
            f"choice, 0 to {count - 1}"
        )
    return int(text)
