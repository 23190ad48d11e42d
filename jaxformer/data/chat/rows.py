"""Forms of rows: reads messages, ShareGPT, alpaca, prompt and completion as conversations."""

import abc
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxformer.data.chat.messages import conversation, messages_in, wrong_value
from jaxformer.data.chat.template import Conversation
from jaxformer.data.files.record import Record
from jaxformer.errors import DataError
from jaxformer.io.files import parse_json

_PAIRS = "a list of [question, answer]"
_SYSTEM = ("system", "system_prompt")
_SHAREGPT = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}


class ChatFormat(abc.ABC):
    """How a row of a table becomes a conversation; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def matches(self, values: Mapping[str, Any]) -> bool:
        """Whether a row has the columns of this form."""

    @abc.abstractmethod
    def read(self, record: Record, needs_answer: bool = True) -> Conversation:
        """Returns the conversation of a row.

        Args:
            record: The row.
            needs_answer: Whether there must be an answer to learn.

        Raises:
            DataError: A column is missing or holds something else; names the line.
        """


@dataclass(frozen=True)
class Messages(ChatFormat):
    """{"messages": [{"role": "user", "content": "..."}, ...]}, as in the files of OpenAI and TRL.

    Every other field of a message is passed to the template ("tool_calls", "name",
    "reasoning_content"), and so are the columns "tools", a list of JSON schemas or a string with
    one, and "chat_template_kwargs", an object.
    """

    column: str = "messages"
    """The column of the messages."""

    def matches(self, values):
        return values.get(self.column) is not None

    def read(self, record, needs_answer=True):
        return conversation(record, messages_in(record, self.column), needs_answer=needs_answer)


@dataclass(frozen=True)
class ShareGPT(ChatFormat):
    """{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}.

    "role" and "content" are also accepted. A "function_call" contains a JSON object with "name" and
    "arguments". The column "system" or "system_prompt", if there is one, is the system message.
    """

    column: str = "conversations"
    """The column of the turns."""

    def matches(self, values):
        return values.get(self.column) is not None

    def read(self, record, needs_answer=True):
        turns = [_turn(record.where, turn) for turn in messages_in(record, self.column)]
        return conversation(record, [*_system(record), *turns], needs_answer=needs_answer)


@dataclass(frozen=True)
class Alpaca(ChatFormat):
    """{"instruction": "...", "input": "...", "output": "..."}.

    The user's message is the instruction, followed by an empty line and the input, if there is one.
    The columns "system" or "system_prompt", a text, and "history", a list of [question, answer],
    come before it.
    """

    instruction: str = "instruction"
    """The column of the instruction."""
    input: str = "input"
    """The column of the input, which may be missing or empty."""
    output: str = "output"
    """The column of the answer."""

    def matches(self, values):
        return all(values.get(name) is not None for name in (self.instruction, self.output))

    def read(self, record, needs_answer=True):
        parts = [record.text(self.instruction)]
        if record.values.get(self.input):
            parts.append(record.text(self.input))
        asked = "\n\n".join(part for part in parts if part)
        history = record.values.get("history") or []
        turns: list[Any] = []
        if not isinstance(history, Sequence) or isinstance(history, str):
            raise wrong_value(record.where, "history", history, _PAIRS)
        for pair in history:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise wrong_value(record.where, "history", pair, _PAIRS)
            turns += exchange(*pair)
        answer = record.text(self.output)
        messages = [*_system(record), *turns, *exchange(asked, answer)]
        return conversation(record, messages, needs_answer=needs_answer)


@dataclass(frozen=True)
class PromptCompletion(ChatFormat):
    """{"prompt": ..., "completion": ...}, both texts or both lists of messages, as in TRL.

    Texts are not a chat: the model learns to continue the prompt with the completion and
    end-of-text, without a template. Of messages, the answers in the completion are learned, and
    those in the prompt are not. With a column "label", as for KTO, a row is learned if the label is
    true.
    """

    prompt: str = "prompt"
    """The column of the prompt."""
    completion: str = "completion"
    """The column of the completion."""

    def matches(self, values):
        return all(values.get(name) is not None for name in (self.prompt, self.completion))

    def read(self, record, needs_answer=True):
        if judgement(record.values.get("label")) is False:
            raise undesirable(record)
        values = [record.value(name) for name in (self.prompt, self.completion)]
        if all(isinstance(value, str) for value in values):
            prompt, completion = (record.text(name) for name in (self.prompt, self.completion))
            if needs_answer and not completion.strip():
                raise DataError(
                    f"{record.where}: no answer: column {self.completion!r} is empty; give one"
                )
            return Conversation(exchange(prompt, completion), where=record.where, plain=True)
        for name, value in zip((self.prompt, self.completion), values, strict=True):
            if isinstance(value, str):
                expected = "a list of messages, like the other column"
                raise wrong_value(record.where, name, value, expected)
        prompt, completion = (messages_in(record, name) for name in (self.prompt, self.completion))
        return conversation(record, [*prompt, *completion], len(prompt), needs_answer)


@dataclass(frozen=True)
class AnyFormat(ChatFormat):
    """The form whose columns a row has, chosen for each row.

    The forms are `Messages`, `ShareGPT`, `Alpaca` and `PromptCompletion`, in this order.
    """

    def matches(self, values):
        return any(form.matches(values) for form in _FORMS)

    def read(self, record, needs_answer=True):
        for form in _FORMS:
            if form.matches(record.values):
                return form.read(record, needs_answer)
        held = ", ".join(map(repr, record.values)) or "none"
        if empty := [name for name, value in record.values.items() if value is None]:
            held += f" (null: {', '.join(map(repr, empty))})"
        raise DataError(
            f"{record.where}: the columns {held} are not a conversation: there must be 'messages', "
            "'conversations', 'instruction' and 'output', or 'prompt' and 'completion'; other "
            "names are given with --data.format Messages --data.format.column NAME, or of another "
            "form (ShareGPT; Alpaca and its input and output; PromptCompletion)"
        )


def judgement(label: Any) -> bool | None:
    """Returns whether a label says that an answer is desirable; None if it is neither."""
    text = str(label).strip().lower().removesuffix(".0")
    return {"true": True, "false": False, "1": True, "0": False}.get(text)


def undesirable(record: Record) -> DataError:
    """Returns the error about a row whose answer must not be learned."""
    return DataError(
        f"{record.where}: label = false: the completion is undesirable and must not be learned; "
        "KTO's loss learns from such rows: python train.py configs/kto.py"
    )


_FORMS = (Messages(), ShareGPT(), Alpaca(), PromptCompletion())


def _turn(where: str, turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn of ShareGPT as a message."""
    if "from" not in turn and "role" not in turn:
        raise DataError(f'{where}: a turn has no "from": {reprlib.repr(dict(turn))}')
    speaker = turn.get("from") if turn.get("from") is not None else turn.get("role")
    content = turn.get("value") if turn.get("value") is not None else turn.get("content")
    role = _SHAREGPT.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise DataError(
            f"{where}: from = {reprlib.repr(speaker)}: must be one of {', '.join(_SHAREGPT)}"
        )
    others = {
        key: value for key, value in turn.items() if key not in ("from", "value", "role", "content")
    }
    if speaker == "function_call" and isinstance(content, str):
        call = parse_json(content, f"{where}: the function_call", object)
        calls = call if isinstance(call, list) else [call]
        functions = [{"type": "function", "function": function} for function in calls]
        return {"role": role, "tool_calls": functions} | others
    return {"role": role, "content": content} | others


def exchange(asked: Any, answer: Any) -> list[dict[str, Any]]:
    """Returns a question of the user and an answer as messages."""
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


def _system(record: Record) -> list[dict[str, Any]]:
    """The system message, if there is a column for it."""
    column = next((name for name in _SYSTEM if record.values.get(name)), None)
    return [] if column is None else [{"role": "system", "content": record.text(column)}]
