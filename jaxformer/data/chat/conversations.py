"""`ConversationData`, the common base of chats and preferences."""

import abc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from jaxformer.checks import FRACTION, Rule, at_least, check_fields, optional
from jaxformer.data.bad_rows import BadRows, read_rows
from jaxformer.data.base import Datasets
from jaxformer.data.chat.answers.spans import content_text
from jaxformer.data.chat.choice import check_template_name, keep_template
from jaxformer.data.chat.examples import TooLong
from jaxformer.data.chat.template import Conversation
from jaxformer.data.dataset import ExampleSource
from jaxformer.data.rows import RowData
from jaxformer.data.tokenizers.specs import (
    Tokenizer,
    TokenizerSpec,
    TrainTokenizer,
    load_tokenizer,
)

Row = TypeVar("Row")


class Rendered(Protocol):
    """Rows that a chat template has rendered, as tokens."""

    def summary(self) -> str:
        """Returns a summary: the numbers of rows and tokens."""


@dataclass(frozen=True, kw_only=True)
class ConversationData(RowData[Row]):
    """Tables of messages, which a chat template turns into text."""

    _fraction: ClassVar[Rule] = optional(FRACTION)

    train: str
    """The training table: .jsonl, .parquet or another table of messages or texts."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    validation_fraction: float | None = None
    """The share of the rows held out for validation; None: 1 %, or 20 rows if that is more, but at
    most a tenth.
    """

    template: str | None = None
    """The chat template: ChatML, Llama2, Llama3, Mistral or a .jinja file; None: the checkpoint's.
    """

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens."""

    sequence_length: int | None = None
    """The tokens of a row; None: as in the checkpoint, at most 2048 for chats and 1024 for
    pairs."""

    too_long: TooLong = "error"
    """What happens to a longer row: an error, or it is cut or left out."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(2)))
        check_template_name(self.template)

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    @abc.abstractmethod
    def read_record(self, record: Any) -> Row:
        """Returns a line of a table as a row."""

    @abc.abstractmethod
    def conversations(self, row: Row) -> Sequence[Conversation]:
        """Returns the conversations of a row."""

    @abc.abstractmethod
    def render(
        self, rows: Sequence[Row], tokenizer: Tokenizer, folder: str | os.PathLike, bad: BadRows
    ) -> Rendered:
        """Renders and tokenises rows."""

    @abc.abstractmethod
    def examples(self, rendered: Rendered, tokenizer: Tokenizer) -> ExampleSource:
        """Returns rendered rows as arrays."""

    def texts(self, row: Row) -> list[str]:
        chats = self.conversations(row)
        return [content_text(message) for chat in chats for message in chat.messages]

    def read(self, source: str) -> list[Row]:
        return read_rows(source, self.read_record, self.on_bad_row)

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads, renders and tokenises the rows; keeps the tokenizer and the template."""
        train, validation = self.split()
        tokenizer = self.run_tokenizer(folder, train)
        learned, held_out = self._rendered((train, validation), tokenizer, folder)
        chats = [chat for row in train for chat in self.conversations(row)]
        keep_template(folder, self.template, self.tokenizer, tokenizer, chats)
        origin = "" if self.validation is not None else f"; held out of {self.train}"
        return Datasets(
            self.dataset(self.examples(learned, tokenizer), "train"),
            self.dataset(self.examples(held_out, tokenizer), "validation"),
            tokenizer,
            summary=(
                ("training", learned.summary()),
                ("validation", f"{held_out.summary()}{origin}"),
            ),
        )

    def prepare_validation(self, folder: str | os.PathLike) -> Datasets:
        rows = self.validation_rows()
        if rows is None:
            return self.prepare(folder)
        tokenizer = load_tokenizer(Path(folder, "tokenizer"))
        (rendered,) = self._rendered([rows], tokenizer, folder)
        examples = self.examples(rendered, tokenizer)
        return Datasets(None, self.dataset(examples, "validation"), tokenizer)

    def _rendered(
        self, sides: Sequence[Sequence[Row]], tokenizer: Tokenizer, folder: str | os.PathLike
    ) -> list[Rendered]:
        bad = BadRows(self.on_bad_row)
        rendered = [self.render(rows, tokenizer, folder, bad) for rows in sides]
        bad.finish("the chat template", sum(map(len, sides)))
        return rendered
