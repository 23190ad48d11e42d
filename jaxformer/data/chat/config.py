"""Chat and instruction data: conversations whose answers the model learns."""

import json
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxformer.data.chat.answers.learned import LearnedChats
from jaxformer.data.chat.answers.spans import with_last_answer_only
from jaxformer.data.chat.choice import encoders
from jaxformer.data.chat.conversations import ConversationData
from jaxformer.data.chat.examples import (
    ChatExamples,
    ChatPacking,
    LossPer,
    PackedChats,
    answer_weights,
)
from jaxformer.data.chat.rows import AnyFormat, ChatFormat, undesirable
from jaxformer.data.chat.template import Conversation


@dataclass(frozen=True)
class ChatData(ConversationData[Conversation]):
    """Conversations; the model learns the assistant's answers, including where they end.

    A row of a batch has "inputs", "targets", "segments" and "positions" int32 [T] and "weights"
    float32 [T], which are 0 outside of the answers.
    """

    longest_row: ClassVar[int] = 2048

    train: str = "train.jsonl"
    """The training table: .jsonl or .parquet, of messages, ShareGPT, alpaca, or prompt and
    completion."""

    format: ChatFormat = AnyFormat()
    """The form of the rows: AnyFormat, Messages, ShareGPT, Alpaca or PromptCompletion."""

    packing: ChatPacking = PackedChats()
    """How conversations become rows: PackedChats or PaddedChats."""

    train_on: Literal["answers", "last", "all"] = "answers"
    """What is learned: every answer of the assistant, the last one of each conversation, or all
    tokens."""

    loss_per: LossPer = "token"
    """What has equal weight: every learned token, or every answer regardless of its length."""

    def read_record(self, record):
        # A label of 0 may be an ordinary class.
        if str(record.values.get("label")).strip().lower() == "false":
            raise undesirable(record)
        chat = self.format.read(record, needs_answer=self.train_on != "all")
        return with_last_answer_only(chat) if self.train_on == "last" else chat

    def side_of(self, row: Conversation) -> str:
        return json.dumps([row.messages, row.tools], default=str)

    def conversations(self, row: Conversation) -> list[Conversation]:
        return [row]

    def render(self, rows, tokenizer, folder, bad) -> LearnedChats:
        learned = LearnedChats(self.sequence_length)
        for encoder, own in encoders(rows, folder, self.template, self.tokenizer, tokenizer):
            learned.add(encoder, own, bad, self.train_on == "all")
        learned.check(self.too_long)
        return learned

    def examples(self, rendered: LearnedChats, tokenizer) -> ChatExamples:
        weights = [answer_weights(answers, self.loss_per) for answers in rendered.answers]
        return ChatExamples(
            rendered.tokens, weights, self.packing, self.sequence_length, tokenizer.pad_id
        )
