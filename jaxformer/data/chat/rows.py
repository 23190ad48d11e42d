"""Forms of rows: messages, ShareGPT, alpaca, prompt and completion all become conversations."""

import abc
import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxformer.data.chat.renderer import GENERATION
from jaxformer.data.chat.template import Conversation
from jaxformer.data.files.lines import encodable
from jaxformer.data.files.record import Record
from jaxformer.errors import DataError
from jaxformer.io.json_files import parse_json

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_PAIRS = "a list of [question, answer]"
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
    """How a row of a table is a conversation; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def matches(self, values: Mapping[str, Any]) -> bool:
        """Whether a row has the columns of this form."""

    @abc.abstractmethod
    def read(self, record: Record) -> Conversation:
        """Returns the conversation of a row.

        Raises:
            DataError: A column is missing or holds something else; names the line.
        """


@dataclass(frozen=True)
class Messages(ChatFormat):
    """{"messages": [{"role": "user", "content": "..."}, ...]}, as OpenAI and TRL have it.

    Every other field of a message reaches the template ("tool_calls", "name", "reasoning_content"),
    and so do the columns "tools", a list of JSON schemas or a string with one, and
    "chat_template_kwargs", an object.
    """

    column: str = "messages"
    """The column of the messages."""

    def matches(self, values):
        return values.get(self.column) is not None

    def read(self, record):
        return conversation(record, messages_in(record, self.column))


@dataclass(frozen=True)
class ShareGPT(ChatFormat):
    """{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}.

    "role" and "content" are understood as well. A "function_call" holds a JSON object with "name"
    and "arguments". The column "system", if there is one, is the system message.
    """

    column: str = "conversations"
    """The column of the turns."""

    def matches(self, values):
        return values.get(self.column) is not None

    def read(self, record):
        turns = [_turn(record.where, turn) for turn in messages_in(record, self.column)]
        return conversation(record, [*_system(record), *turns])


@dataclass(frozen=True)
class Alpaca(ChatFormat):
    """{"instruction": "...", "input": "...", "output": "..."}.

    The user's message is the instruction, and the input after an empty line where there is one. The
    columns "system", a text, and "history", a list of [question, answer], come before it.
    """

    instruction: str = "instruction"
    """The column of the instruction."""
    input: str = "input"
    """The column of the input, which may be missing or empty."""
    output: str = "output"
    """The column of the answer."""

    def matches(self, values):
        return all(values.get(name) is not None for name in (self.instruction, self.output))

    def read(self, record):
        parts = [record.text(self.instruction)]
        if record.values.get(self.input):
            parts.append(record.text(self.input))
        asked = "\n\n".join(part for part in parts if part)
        history = record.values.get("history") or []
        turns: list[Any] = []
        if not isinstance(history, Sequence) or isinstance(history, str):
            raise DataError(
                _wrong(record.where, "history", history, "a list of [question, answer]")
            )
        for pair in history:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise DataError(
                    _wrong(record.where, "history", pair, "a list of [question, answer]")
                )
            turns += _question(*pair)
        answer = record.text(self.output)
        return conversation(record, [*_system(record), *turns, *_question(asked, answer)])


@dataclass(frozen=True)
class PromptCompletion(ChatFormat):
    """{"prompt": ..., "completion": ...}, both texts or both lists of messages, as TRL has it.

    Texts are no chat: the model learns to continue the prompt with the completion and end-of-text,
    without a template. Of messages, the answers in the completion are learned, and those in the
    prompt are not.
    """

    prompt: str = "prompt"
    """The column of the prompt."""
    completion: str = "completion"
    """The column of the completion."""

    def matches(self, values):
        return all(values.get(name) is not None for name in (self.prompt, self.completion))

    def read(self, record):
        values = [record.value(name) for name in (self.prompt, self.completion)]
        if all(isinstance(value, str) for value in values):
            prompt, completion = (record.text(name) for name in (self.prompt, self.completion))
            if not completion.strip():
                raise DataError(
                    f"{record.where}: no answer: column {self.completion!r} is empty; give one, "
                    "or leave the row out"
                )
            return Conversation(_question(prompt, completion), where=record.where, plain=True)
        for name, value in zip((self.prompt, self.completion), values, strict=True):
            if isinstance(value, str):
                raise DataError(
                    _wrong(
                        record.where,
                        name,
                        value,
                        "a list of messages, which the other column holds",
                    )
                )
        prompt, completion = (messages_in(record, name) for name in (self.prompt, self.completion))
        return conversation(record, [*prompt, *completion], first=len(prompt))


@dataclass(frozen=True)
class AnyFormat(ChatFormat):
    """Each row on its own: whichever of the forms it has the columns of.

    The forms are `Messages`, `ShareGPT`, `Alpaca` and `PromptCompletion`, in this order.
    """

    def matches(self, values):
        return any(form.matches(values) for form in _FORMS)

    def read(self, record):
        for form in _FORMS:
            if form.matches(record.values):
                return form.read(record)
        held = ", ".join(map(repr, record.values)) or "none"
        raise DataError(
            f"{record.where}: the columns {held} are no conversation: there must be 'messages', "
            "'conversations', 'instruction' and 'output', or 'prompt' and 'completion'; other "
            "names are told with --data.format Messages --data.format.column NAME"
        )


_FORMS = (Messages(), ShareGPT(), Alpaca(), PromptCompletion())


def messages_in(record: Record, column: str) -> list[dict[str, Any]]:
    """Returns the messages in a column, without what Arrow added to them.

    Args:
        record: The row.
        column: The column: a list of objects, or a string with one in JSON.

    Raises:
        DataError: It holds something else, or no message.
    """
    held = _parsed(record, column)
    if not isinstance(held, Sequence) or isinstance(held, str):
        raise DataError(_wrong(record.where, column, held, "a list of messages"))
    if not held:
        raise DataError(f"{record.where}: column {column!r} is empty: a conversation has messages")
    for number, message in enumerate(held, start=1):
        if not isinstance(message, Mapping):
            raise DataError(
                _wrong(record.where, f"{column}, message {number}", message, "an object")
            )
    return list(held)


def conversation(
    record: Record, messages: Sequence[Mapping[str, Any]], first: int = 0
) -> Conversation:
    """Returns checked messages of a row as a conversation, with the row's tools.

    Args:
        record: The row.
        messages: The messages.
        first: How many of them are context, whose answers are not learned.

    Raises:
        DataError: A message is wrong, or there is no answer to learn; names the line.
    """
    check_messages(record.where, messages)
    said = [message for message in messages[first:] if message["role"] == "assistant"]
    if not any(_says_something(message) for message in said):
        among = f"the last {len(messages) - first} of them" if first else "them"
        roles = ", ".join(message["role"] for message in messages)
        raise DataError(
            f"{record.where}: no answer: the messages are by {roles}, and none of {among} is a "
            "text by 'assistant'; give one, or leave the row out"
        )
    tools = _parsed(record, "tools") if record.values.get("tools") else None
    if tools is not None and (isinstance(tools, str) or not isinstance(tools, Sequence)):
        raise DataError(_wrong(record.where, "tools", tools, "a list of JSON schemas"))
    variables = record.values.get("chat_template_kwargs") or {}
    if not isinstance(variables, Mapping):
        raise DataError(_wrong(record.where, "chat_template_kwargs", variables, "an object"))
    return Conversation(list(messages), tools, dict(variables), first, record.where)


def check_messages(where: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Checks the roles and the contents of messages.

    Args:
        where: "file:line".
        messages: The messages.

    Raises:
        DataError: A role is unknown or out of order, or a content is no text; names the line.
    """
    before = None
    for number, message in enumerate(messages, start=1):
        role, name = message.get("role"), f"{where}: message {number}"
        if role not in ROLES:
            raise DataError(
                f"{name}: role = {reprlib.repr(role)}: must be one of {', '.join(ROLES[:5])}"
            )
        content = message.get("content")
        parts = [content] if isinstance(content, Mapping) else content
        is_list = isinstance(parts, list) and all(isinstance(part, Mapping) for part in parts)
        calls = content is None and role == "assistant" and _says_something(message)
        if not (isinstance(content, str) or (is_list and content) or calls):
            raise DataError(
                f"{name}: content = {reprlib.repr(content)}: must be a text, or a list of objects "
                'such as {"type": "text", "text": "..."}'
            )
        if role == "assistant" and before in (None, "system", "developer"):
            raise DataError(
                f"{name}: roles out of order: the assistant answers before the user has said "
                "anything"
            )
        if role == "tool" and before not in ("assistant", "tool"):
            raise DataError(
                f"{name}: roles out of order: a tool answers a call of the assistant, and comes "
                f"after {before!r} here"
            )
        before = role
    text = encodable(json.dumps([*messages], ensure_ascii=False, default=str), f"{where}: a text")
    if any(mark in text for mark in GENERATION):
        raise DataError(f"{where}: a text holds the code point U+FDD0 or U+FDD1, which is no text")


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


def _question(asked: Any, answer: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


def _system(record: Record) -> list[dict[str, Any]]:
    """The system message in a column of its own, if there is one."""
    if not record.values.get("system"):
        return []
    return [{"role": "system", "content": record.text("system")}]


def _says_something(message: Mapping[str, Any]) -> bool:
    """Whether a message has a text, or something else besides its role."""
    content = message.get("content")
    if isinstance(content, str) and content.strip():
        return True
    others = (value for key, value in message.items() if key not in ("role", "content", "name"))
    return any(others) or bool(content and not isinstance(content, str))


def _parsed(record: Record, column: str) -> Any:
    """The value of a column; a string is read as JSON, and nulls that Arrow added go."""
    value = record.value(column)
    if isinstance(value, str):
        return parse_json(value, f"{record.where}: column {column!r}", object)
    return _without_nulls(value) if _is_arrow(record.where) else value


def _is_arrow(where: str) -> bool:
    return where.rpartition(", row ")[0].endswith((".parquet", ".arrow"))


def _without_nulls(value: Any) -> Any:
    """A value without the keys that an Arrow table gives an object because another one has them."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def _wrong(where: str, column: str, value: Any, expected: str) -> str:
    return f"{where}: column {column!r} holds {reprlib.repr(value)}, not {expected}"
