"""Chat and instruction data: conversations, of which the model learns the answers."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jaxformer.checks import at_least, check_fields, optional
from jaxformer.data.base import Data, Datasets
from jaxformer.data.chat.choice import check_template_name, encoders
from jaxformer.data.chat.encoder import answers_of, said_in
from jaxformer.data.chat.examples import (
    ChatExamples,
    ChatPacking,
    LossPer,
    PackedChats,
    answer_weights,
)
from jaxformer.data.chat.learned import LearnedChats, TooLong
from jaxformer.data.chat.rows import AnyFormat, ChatFormat
from jaxformer.data.chat.template import Conversation
from jaxformer.data.dataset import Dataset
from jaxformer.data.files.tables import read_records
from jaxformer.data.split import train_validation_split
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import (
    Tokenizer,
    TokenizerSpec,
    TrainTokenizer,
    load_tokenizer,
)
from jaxformer.errors import DataError


@dataclass(frozen=True)
class ChatData(Data):
    """Conversations; the model learns what the assistant says, and when it stops.

    A row of a batch has "inputs", "targets", "segments" and "positions" int32 [T] and "weights"
    float32 [T], which are 0 outside of the answers.
    """

    longest_row: ClassVar[int] = 2048

    train: str = "train.jsonl"
    """The training table: .jsonl or .parquet, of messages, ShareGPT, alpaca, or prompt and
    completion."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training conversations."""

    format: ChatFormat = AnyFormat()
    """The form of the rows: AnyFormat, Messages, ShareGPT, Alpaca or PromptCompletion."""

    template: str | None = None
    """The chat template: ChatML, Llama2, Llama3, Mistral or a .jinja file; None: the
    checkpoint's."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens."""

    sequence_length: int | None = None
    """Tokens of a row; None: as many as the checkpoint takes, 2048 at most."""

    too_long: TooLong = "error"
    """What becomes of a conversation with more tokens than a row: an error, cut at the end, or left
    out."""

    packing: ChatPacking = PackedChats()
    """How conversations become rows: PackedChats or PaddedChats."""

    train_on: Literal["answers", "last", "all"] = "answers"
    """What is learned: every answer of the assistant, the last one of each conversation, or all
    tokens."""

    loss_per: LossPer = "token"
    """What counts the same: every token that is learned, or every answer, whatever its length."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sequence_length=optional(at_least(2)))
        check_template_name(self.template)

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.sequence_length}

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads, renders and tokenises the conversations; keeps the tokenizer and the template.

        Args:
            folder: The run's folder.

        Returns:
            Both sides of the data, with the tokenizer.

        Raises:
            ConfigError: There is no such template.
            DataError: A table cannot be read, a row is no conversation or has no answer, or is too
                long, or the template is missing or refuses it; names the file and the line.
        """
        chats = self._read(self.train)
        if self.validation is None:
            names = [json.dumps([chat.messages, chat.tools], default=str) for chat in chats]
            train, held_out = train_validation_split(
                chats, names, self.validation_fraction, self.split_seed, self.train
            )
        else:
            train, held_out = chats, self._read(self.validation)
        tokenizer = load_or_train_tokenizer(folder, self.tokenizer, _texts(train))
        learned = self._learned(train, tokenizer, folder)
        checked = self._learned(held_out, tokenizer, folder)
        return Datasets(
            self._dataset(learned, tokenizer, "train"),
            self._dataset(checked, tokenizer, "validation"),
            tokenizer,
            summary=(
                ("training", learned.in_words()),
                ("validation", checked.in_words()),
            ),
            example=learned.example,
        )

    def prepare_validation(self, folder: str | os.PathLike) -> Datasets:
        """Reads the conversations for validation.

        Args:
            folder: The run's folder, which has its tokenizer and its template.

        Returns:
            The validation side, with the tokenizer.

        Raises:
            DataError: The table cannot be read, or a row is wrong; names the file and the line.
        """
        if self.validation is None:
            return self.prepare(folder)
        tokenizer = load_tokenizer(Path(folder, "tokenizer"))
        learned = self._learned(self._read(self.validation), tokenizer, folder)
        return Datasets(None, self._dataset(learned, tokenizer, "validation"), tokenizer)

    def _read(self, path: str) -> list[Conversation]:
        chats = [self.format.read(record) for record in read_records(path)]
        if not chats:
            raise DataError(f"{path} has no rows")
        return chats if self.train_on != "last" else list(map(_last_alone, chats))

    def _learned(
        self, chats: Sequence[Conversation], tokenizer: Tokenizer, folder: str | os.PathLike
    ) -> LearnedChats:
        """Renders and tokenises conversations."""
        learned = LearnedChats(self.sequence_length)
        wanted = folder, self.template, self.tokenizer, tokenizer
        for encoder, own in encoders(chats, *wanted):
            learned.add(encoder, own, self.train_on == "all")
        learned.check(self.too_long)
        return learned

    def _dataset(self, learned: LearnedChats, tokenizer: Tokenizer, name: str) -> Dataset:
        weights = [answer_weights(answers, self.loss_per) for answers in learned.answers]
        examples = ChatExamples(
            learned.tokens, weights, self.packing, self.sequence_length, tokenizer.pad_id
        )
        return self.dataset(examples, name)


def _texts(chats: Sequence[Conversation]) -> Iterator[str]:
    for chat in chats:
        for message in chat.messages:
            yield said_in(message)


def _last_alone(chat: Conversation) -> Conversation:
    """The conversation with its last answer to learn, the others being context."""
    answers = answers_of(chat)
    return chat._replace(first=answers[-1])
