"""Reads the messages of a row from a column, and checks them before any is rendered."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.data.chat.answers.spans import NOT_LEARNED
from jaxformer.data.chat.renderer import GENERATION, MARK
from jaxformer.data.chat.template import Conversation
from jaxformer.data.files.lines import encodable
from jaxformer.data.files.record import Record
from jaxformer.errors import DataError
from jaxformer.io.files import parse_json

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
"""The roles of published templates."""


def messages_in(record: Record, column: str) -> list[dict[str, Any]]:
    """Returns the messages in a column, without the nulls that Arrow added."""
    held = _parsed(record, column)
    if not isinstance(held, Sequence) or isinstance(held, str):
        raise wrong_value(record.where, column, held, "a list of messages")
    if not held:
        raise DataError(f"{record.where}: column {column!r} is empty: a conversation has messages")
    for number, message in enumerate(held, start=1):
        if not isinstance(message, Mapping):
            raise wrong_value(record.where, f"{column}, message {number}", message, "an object")
    return list(held)


def conversation(
    record: Record,
    messages: Sequence[Mapping[str, Any]],
    first: int = 0,
    needs_answer: bool = True,
) -> Conversation:
    """Returns checked messages of a row as a conversation, with the row's tools."""
    check_messages(record.where, messages)
    answers = [message for message in messages[first:] if message["role"] == "assistant"]
    if needs_answer and not any(_has_content(message) for message in answers):
        among = f"the last {len(messages) - first} of them" if first else "them"
        roles = ", ".join(message["role"] for message in messages)
        raise DataError(
            f"{record.where}: no answer: the messages are by {roles}, and none of {among} is a "
            "text by 'assistant'; give one"
        )
    tools = _parsed(record, "tools") if record.values.get("tools") else None
    if tools is not None and (isinstance(tools, str) or not isinstance(tools, Sequence)):
        raise wrong_value(record.where, "tools", tools, "a list of JSON schemas")
    variables = record.values.get("chat_template_kwargs") or {}
    if not isinstance(variables, Mapping):
        raise wrong_value(record.where, "chat_template_kwargs", variables, "an object")
    return Conversation(list(messages), tools, dict(variables), first, record.where)


def check_messages(where: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Checks the roles and the contents of messages."""
    before = None
    for number, message in enumerate(messages, start=1):
        role = message.get("role")
        name = f"{where}: message {number}"
        if role not in ROLES:
            raise DataError(
                f"{name}: role = {reprlib.repr(role)}: must be one of {', '.join(ROLES[:5])}"
            )
        content = message.get("content")
        parts = [content] if isinstance(content, Mapping) else content
        is_list = isinstance(parts, list) and all(isinstance(part, Mapping) for part in parts)
        calls = content is None and role == "assistant" and _has_content(message)
        if not (isinstance(content, str) or (is_list and content) or calls):
            raise DataError(
                f"{name}: content = {reprlib.repr(content)}: must be a text, or a list of objects "
                'such as {"type": "text", "text": "..."}'
            )
        if (weight := message.get("weight")) not in (None, 0, 1):
            raise DataError(
                f"{name}: weight = {reprlib.repr(weight)}: must be 1, or 0 for a message that is "
                "not learned"
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
    for mark in (*GENERATION, MARK):
        if mark in text:
            raise DataError(
                f"{where}: a text holds the code point U+{ord(mark):X}, not a character"
            )


def _has_content(message: Mapping[str, Any]) -> bool:
    """Whether a message has a text or any other content."""
    content = message.get("content")
    if isinstance(content, str) and content.strip():
        return True
    ignored = ("role", "content", "name", *NOT_LEARNED)
    others = (value for key, value in message.items() if key not in ignored)
    return any(others) or bool(content and not isinstance(content, str))


def _parsed(record: Record, column: str) -> Any:
    """The value of a column; a string is read as JSON, and nulls that Arrow added are removed."""
    value = record.value(column)
    if isinstance(value, str):
        return parse_json(value, f"{record.where}: column {column!r}", object)
    is_arrow = record.where.rpartition(", row ")[0].endswith((".parquet", ".arrow"))
    return _without_nulls(value) if is_arrow else value


def _without_nulls(value: Any) -> Any:
    """A value without the null keys that an Arrow table adds to objects that lack them."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def wrong_value(where: str, column: str, value: Any, expected: str) -> DataError:
    """Returns the error about a column with a wrong value."""
    return DataError(f"{where}: column {column!r} holds {reprlib.repr(value)}, not {expected}")
