"""Reads both conversations of a row of preferences, in any form."""

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from jaxformer.data.chat.answers.spans import common_prefix_length
from jaxformer.data.chat.messages import conversation, messages_in
from jaxformer.data.chat.rows import exchange
from jaxformer.data.chat.template import Conversation, Message
from jaxformer.data.files.record import Record
from jaxformer.errors import DataError


@dataclass(frozen=True)
class Preference:
    """{"prompt": ..., "chosen": ..., "rejected": ...}, as in TRL.

    Of texts, the model learns to continue the prompt with an answer and end-of-text, without a
    template. Of messages, the answers of the assistant after the prompt are learned; a text next to
    messages is the user's prompt, or the assistant's answer. Without a prompt column, the prompt is
    the common beginning of both sides. A prompt that the conversations of both sides repeat counts
    once.
    """

    prompt: str = "prompt"
    """The column of the prompt."""
    chosen: str = "chosen"
    """The column of the better answer, or of the conversation that ends with it."""
    rejected: str = "rejected"
    """The column of the worse answer, or of the conversation that ends with it."""

    def read(self, record: Record) -> "PreferenceRow":
        """Returns both conversations of a row."""
        held = record.values.get(self.prompt), *map(record.value, (self.chosen, self.rejected))
        if held[1] == held[2]:
            raise DataError(
                f"{record.where}: {self.chosen!r} and {self.rejected!r} are the same, so there is "
                "nothing to prefer"
            )
        are_texts = all(isinstance(value, str | None) for value in held)
        return self._texts(record) if are_texts else self._messages(record)

    def _texts(self, record: Record) -> "PreferenceRow":
        chosen, rejected = (record.text(name) for name in (self.chosen, self.rejected))
        if record.values.get(self.prompt) is None:
            # The words that both sides begin with, without the white space after them.
            prompt = re.sub(r"\s+\S*$", "", chosen[: common_prefix_length(chosen, rejected)])
            chosen = chosen[len(prompt) :]
            rejected = rejected[len(prompt) :]
        else:
            prompt = record.text(self.prompt)
        if not prompt:
            raise self._no_prompt(record)
        for name, answer in ((self.chosen, chosen), (self.rejected, rejected)):
            if not answer.strip():
                raise DataError(f"{record.where}: no answer: column {name!r} is empty")
        return PreferenceRow(
            *(
                Conversation(exchange(prompt, answer), where=record.where, plain=True)
                for answer in (chosen, rejected)
            )
        )

    def _messages(self, record: Record) -> "PreferenceRow":
        chosen, rejected = (
            _messages(record, name, "assistant") for name in (self.chosen, self.rejected)
        )
        prompt = _messages(record, self.prompt, "user")
        both = zip(chosen, rejected, strict=False)
        whole = [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        if whole and all(message in whole for message in prompt):
            prompt = whole
            chosen = chosen[len(whole) :]
            rejected = rejected[len(whole) :]
        if not prompt:
            raise self._no_prompt(record)
        for name, answer in ((self.chosen, chosen), (self.rejected, rejected)):
            role = answer[0].get("role") if answer else None
            if role != "assistant":
                found = f"a message by {role!r}" if answer else "nothing"
                raise DataError(
                    f"{record.where}: column {name!r}: {found} follows the common beginning of "
                    "both sides: both must answer the same prompt, by 'assistant'"
                )
        return PreferenceRow(
            *(
                conversation(record, [*prompt, *answer], first=len(prompt))
                for answer in (chosen, rejected)
            )
        )

    def _no_prompt(self, record: Record) -> DataError:
        return DataError(
            f"{record.where}: no prompt: {self.chosen!r} and {self.rejected!r} begin with nothing "
            f"in common, and column {self.prompt!r} is missing or empty; give one"
        )


class PreferenceRow(NamedTuple):
    """The two conversations of a row, which differ in the answer."""

    chosen: Conversation
    rejected: Conversation

    @property
    def prompt(self) -> list[Message]:
        """The messages before the answers."""
        return list(self.chosen.messages[: self.chosen.first or 1])


def _messages(record: Record, column: str, role: str) -> list[Message]:
    """The messages in a column; a text is one message by `role`, and null means none."""
    value = record.values.get(column)
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": role, "content": record.text(column)}]
    single = isinstance(value, dict)
    return messages_in(Record(record.where, {column: [value]}) if single else record, column)
