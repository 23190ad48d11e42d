"""Unpaired preferences: answers, each of which is desirable or not."""

import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from jaxformer.data.bad_rows import each
from jaxformer.data.chat.answers.spans import with_last_answer_only
from jaxformer.data.chat.choice import encoders
from jaxformer.data.chat.conversations import ConversationData
from jaxformer.data.chat.encoder import ChatEncoder
from jaxformer.data.chat.preferences.pairs import Answer, FittingRows, Pair, PairExamples
from jaxformer.data.chat.rows import AnyFormat, ChatFormat, judgement
from jaxformer.data.chat.template import Conversation
from jaxformer.data.dataset import Batch
from jaxformer.errors import DataError

DESIRABLE = "desirable"
"""The array of a batch with 1 for desirable answers, int32 `[B]`."""


class JudgedRow(NamedTuple):
    """A conversation whose answer is desirable or not."""

    chat: Conversation
    desirable: bool


@dataclass(frozen=True)
class UnpairedPreferenceData(ConversationData[JudgedRow]):
    """Answers, each of which is desirable or not: the data of KTO.

    {"prompt": ..., "completion": ..., "label": true}, as in TRL, or a conversation in any other
    form with a label for its last answer. Texts are continued unchanged; messages become text by
    the chat template.

    A row of a batch has "inputs" and "targets" int32 [2, T], and "weights" float32 [2, T], 1 where
    the target is a token of the answer: first the answer itself, then the answer to another prompt
    in its place, from which the loss estimates the distance between the model and its reference.
    "desirable" is 1 or 0.
    """

    preference: ClassVar[str] = "KTO"
    sequences_per_row: ClassVar[int] = 2
    longest_row: ClassVar[int] = 1024

    train: str = "judged.jsonl"
    """The training table: .jsonl, .parquet or another table of messages or texts."""

    format: ChatFormat = AnyFormat()
    """The form of the rows: AnyFormat, PromptCompletion, Messages, ShareGPT or Alpaca."""

    label: str = "label"
    """The column that says whether the answer is desirable: true or false, or 1 or 0."""

    def read_record(self, record):
        label = record.value(self.label)
        desirable = judgement(label)
        if desirable is None:
            raise DataError(
                f"{record.where}: {self.label} = {reprlib.repr(label)}: must be true for a "
                "desirable answer, or false"
            )
        others = {name: value for name, value in record.values.items() if name != self.label}
        chat = self.format.read(record._replace(values=others))
        return JudgedRow(
            chat if chat.plain or chat.first else with_last_answer_only(chat), desirable
        )

    def side_of(self, row: JudgedRow) -> str:
        # Answers to the same prompt are on the same side.
        return json.dumps(row.chat.messages[: row.chat.first or 1], default=str)

    def conversations(self, row: JudgedRow) -> list[Conversation]:
        return [row.chat]

    def render(self, rows, tokenizer, folder, bad) -> FittingRows:
        found = []
        labels = {row.chat.where: row.desirable for row in rows}
        chats = [row.chat for row in rows]
        for encoder, own in encoders(chats, folder, self.template, self.tokenizer, tokenizer):
            for chat, answer in each(partial(_encoded, encoder), own, bad):
                found.append(JudgedAnswer(answer, labels[chat.where], chat.where))
        return FittingRows.of(found, self.sequence_length, self.too_long, "answer")

    def examples(self, rendered: FittingRows, tokenizer) -> "JudgedExamples":
        return JudgedExamples(
            rendered.kept, self.sequence_length, tokenizer.pad_id, self.split_seed
        )


class JudgedAnswer(NamedTuple):
    """A prompt with its answer as tokens."""

    answer: Answer
    desirable: bool
    where: str
    """ "file:line"."""

    @property
    def answers(self) -> tuple[Answer]:
        """The only side."""
        return (self.answer,)

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.answer.tokens)

    @property
    def is_learned(self) -> bool:
        """Whether there is a token to predict."""
        return bool(self.answer.learned[1:].any())

    def cut(self, size: int) -> "JudgedAnswer":
        """Returns at most `size` tokens, see `Answer.cut`."""
        return self._replace(answer=self.answer.cut(size))


class JudgedExamples(PairExamples):
    """Answers that are desirable or not, each with an answer to another prompt, chosen by
    `seed`.
    """

    def __init__(self, rows: Sequence[JudgedAnswer], length: int, pad_id: int, seed: int):
        order = np.random.default_rng(seed).permutation(len(rows))
        other = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
        pairs = [
            Pair(row.answer, _exchanged(row.answer, rows[other[n]].answer, length), row.where)
            for n, row in enumerate(rows)
        ]
        super().__init__(pairs, length, pad_id)
        self._desirable = [row.desirable for row in rows]

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns "inputs", "targets" and "weights", each [2, T], and "desirable"."""
        return super().read(index, rng) | {DESIRABLE: np.int32(self._desirable[index])}

    def blank(self) -> Batch:
        return super().blank() | {DESIRABLE: np.int32(0)}


def _encoded(encoder: ChatEncoder, chats: Sequence[Conversation]) -> list[Answer]:
    answers = (Answer(chat.tokens, chat.is_answer) for chat in encoder.encode_answers(chats))
    return [answer.part(0, int(np.flatnonzero(answer.learned)[-1]) + 1) for answer in answers]


def _exchanged(own: Answer, other: Answer, length: int) -> Answer:
    """Combines the prompt of one answer with another answer."""
    start = other.prompt_size
    prompt = own.tokens[: own.prompt_size]
    tokens = np.concatenate([prompt, other.tokens[start:]])
    learned = np.concatenate([np.zeros(len(prompt), bool), other.learned[start:]])
    return Answer(tokens, learned).cut(length)
