"""Tool calls in the form that a template accepts: their arguments as objects or as text."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from jaxformer.data.chat.template import ChatTemplate, Conversation, Message, RenderRequest
from jaxformer.errors import DataError
from jaxformer.io.files import parse_json
from jaxformer.io.notices import warn_once

_NAME = "weather"
_OBJECT = {"city": "Rome"}
_TEXT = json.dumps(_OBJECT)
_RESULT = "Dry all day."


class CallForm(NamedTuple):
    """The form of tool calls that a template accepts; other accepted forms are kept."""

    arguments: type | None
    """dict or str if it refuses the other one; None if it accepts both, or neither."""
    needs_content: bool
    """Whether it refuses a message without a content."""
    quotes: bool
    """Whether arguments that are text become a JSON string instead of an object."""
    is_written: bool
    """Whether it writes calls and the answers of tools."""


def call_form(template: ChatTemplate) -> CallForm:
    """Returns the form of calls that a template accepts, by trying."""
    kinds = [(arguments, content) for content in ({"content": ""}, {}) for arguments in (dict, str)]
    tried = template.attempt_batch(RenderRequest(_called(*kind)) for kind in kinds)
    whole, text, bare, bare_text = (
        None if isinstance(found, DataError) else found.text for found in tried
    )
    arguments = None
    if (whole is None) != (text is None):
        arguments = str if whole is None else dict
    full, bare = (text, bare_text) if arguments is str else (whole, bare)
    quotes = text is not None and json.dumps(_TEXT) in text
    writes = full is not None and _NAME in full
    return CallForm(arguments, writes and bare is None, quotes, writes and _RESULT in full)


def writes_tools(template: ChatTemplate) -> bool:
    """Returns whether a template writes the tools of a conversation, by trying."""
    asked = Conversation([{"role": "user", "content": "Rain?"}])
    schema = {"name": _NAME, "description": "Says it.", "parameters": {}}
    tools = [{"type": "function", "function": schema}]
    requests = [RenderRequest(chat, True) for chat in (asked, asked._replace(tools=tools))]
    without, having = template.attempt_batch(requests)
    # It may refuse an example that lacks a field it reads from a tool.
    return isinstance(without, DataError) or without != having


def function_of(call: Any) -> Mapping[str, Any] | None:
    """Returns the function of a call or of a tool, which may stand alone; None if it has none."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else None


def with_function(call: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Returns a call with other fields of its function."""
    if "function" in call:
        return {**call, "function": {**call["function"], **fields}}
    return {**call, **fields}


def convert_calls(chat: Conversation, form: CallForm, name: object) -> Conversation:
    """Returns a conversation whose calls have the form that a template accepts."""
    messages = [_convert_message(message, form, name) for message in chat.messages]
    return chat._replace(messages=messages)


def _called(arguments: type, content: Mapping[str, str]) -> Conversation:
    """A conversation with a call."""
    function = {"name": _NAME, "arguments": _TEXT if arguments is str else _OBJECT}
    call = {"type": "function", "id": "a1b2c3d4e", "function": function}
    return Conversation(
        [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "tool_calls": [call], **content},
            {"role": "tool", "name": _NAME, "tool_call_id": call["id"], "content": _RESULT},
        ]
    )


def _convert_message(message: Message, form: CallForm, name: object) -> Message:
    calls = message.get("tool_calls")
    if not calls or isinstance(calls, str) or not isinstance(calls, Sequence):
        return message
    if form.needs_content and message.get("content") is None:
        warn_once(
            f"{name}: calls of tools without a content get an empty one, which the template needs"
        )
        message = {**message, "content": ""}
    change: Callable[[Any], Any] = {dict: _read, str: _written}.get(form.arguments, lambda x: x)
    changed = [_with_arguments(call, change) for call in calls]
    if changed != list(calls):
        how = "objects: texts are read" if form.arguments is dict else "text: objects are written"
        warn_once(f"{name}: takes the arguments of tool calls as {how} as JSON")
    if form.quotes and any(isinstance(_arguments(call), str) for call in calls):
        warn_once(
            f"{name}: writes arguments of tool calls that are text in quotation marks, as "
            "transformers does: give them as objects"
        )
    return {**message, "tool_calls": changed}


def _arguments(call: Any) -> Any:
    return (function_of(call) or {}).get("arguments")


def _with_arguments(call: Any, change: Callable[[Any], Any]) -> Any:
    arguments = _arguments(call)
    return call if arguments is None else with_function(call, arguments=change(arguments))


def _read(arguments: Any) -> Any:
    with suppress(DataError):
        if isinstance(arguments, str):
            return parse_json(arguments, "arguments")
    return arguments


def _written(arguments: Any) -> Any:
    is_text = isinstance(arguments, str)
    return arguments if is_text else json.dumps(arguments, ensure_ascii=False)
