"""Tool calls in a model's answers, in the form in which its template writes them.

A model is trained on its template's texts, and so answers in their form. The form is read from two
rendered calls:

    opening  call  between  call  closing
    <tool_call> {"name": ..., "arguments": ...} </tool_call> <tool_call> {...} </tool_call>
    [TOOL_CALLS] [{"name": ..., "arguments": ...}, {...}]
    [TOOL_CALLS] name [ARGS] {...} [TOOL_CALLS] name [ARGS] {...}

A call is a JSON object, several calls are a list of objects, or a call is a name followed by its
arguments as an object. Arguments in any other form (tags, Python) are not recognised.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxformer.data.chat.answers.spans import common_prefix_length
from jaxformer.data.chat.calls import CallForm
from jaxformer.data.chat.template import ChatTemplate, Conversation, Rendered, RenderRequest

_NAMES = ("weather", "distance")
_ARGUMENTS = ({"city": "Rome"}, {"lake": "Garda"})
_SAID = "Ø"
_DECODER = json.JSONDecoder()
_NAME = re.compile(r"[\w.:/-]+")


class Call(NamedTuple):
    """A tool call."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    """The id that the model gives it, if any."""


class ParsedAnswer(NamedTuple):
    """The calls in an answer, and the text around them."""

    text: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class CallSyntax:
    """The form in which a template writes tool calls."""

    opening: str
    """The text before the first call; may be empty."""
    between: str
    """The text between two calls; empty if they are in a list, or if there is at most one."""
    closing: str
    """The text after the last call; may be empty."""
    name_key: str | None
    """The key of the name in the object of a call; None: the name comes before the object."""
    arguments_key: str | None
    """The key of the arguments; None: the object is the arguments."""
    after_name: str = ""
    """The text between a name and the object after it."""

    def parts(self) -> str:
        """Returns the parts of the form other than JSON objects, which may be special tokens."""
        return "\n".join((self.opening, self.between, self.closing, self.after_name))

    def find(self, text: str, names: Sequence[str]) -> ParsedAnswer:
        """Returns the calls in an answer.

        White space around the parts is ignored. An incomplete call stays text.
        """
        said, calls, done = [], [], 0
        for start, body in self._openings(text):
            if start < done:
                continue
            found, end = self._calls(text, body)
            known = self.opening or all(call.name in names for call in found)
            if not found or not known:
                continue
            said.append(text[done:start])
            calls += found
            done = end
        # The answer may be cut before its end.
        rest = "" if _bare(self.closing).startswith(_bare(text[done:])) else text[done:]
        if not calls:
            return ParsedAnswer(text, ())
        if not self.opening and rest.strip():
            return ParsedAnswer(text, ())
        said = [part.strip() for part in (*said, rest) if part.strip()]
        return ParsedAnswer("\n\n".join(said), tuple(calls))

    def _openings(self, text: str) -> Iterator[tuple[int, int]]:
        """Where calls may begin: the start and the end of each opening."""
        if not self.opening.strip():
            yield 0, _after_blanks(text, 0)
            return
        for found in _pattern(self.opening).finditer(text):
            yield found.start(), _after_blanks(text, found.end())

    def _calls(self, text: str, start: int) -> tuple[list[Call], int]:
        """The calls from a place on, and the end of their closing."""
        calls, end = self._body(text, start)
        more = _pattern(self.between) if self.between.strip() else None
        while calls and more and (found := more.match(text, end)):
            others, after = self._body(text, _after_blanks(text, found.end()))
            if not others:
                break
            calls, end = calls + others, after
        if calls and (found := _pattern(self.closing).match(text, end)):
            end = found.end()
        return calls, end

    def _body(self, text: str, start: int) -> tuple[list[Call], int]:
        """The call, or the list of calls, at a place."""
        name = None
        if self.name_key is None:
            found = re.compile(f"({_NAME.pattern}){_pattern(self.after_name).pattern}\\s*").match(
                text, start
            )
            if found is None:
                return [], start
            name, start = found[1], found.end()
        held = _json_at(text, start)
        if held is None:
            return [], start
        value, end = held
        if name is not None:
            return ([Call(name, value)], end) if isinstance(value, dict) else ([], start)
        calls = [self._read(each) for each in (value if isinstance(value, list) else [value])]
        return ([], start) if None in calls else (calls, end)

    def _read(self, value: Any) -> Call | None:
        """The call that a JSON value describes, if any."""
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = {**value, **value["function"]}
        if not isinstance(value, dict) or not isinstance(value.get(self.name_key), str):
            return None
        arguments = value.get(self.arguments_key)
        id_ = value.get("id")
        if isinstance(arguments, str):
            held = _json_at(arguments, 0)
            arguments = held and held[0]
        if not isinstance(arguments, dict):
            return None
        return Call(value[self.name_key], arguments, id_ if isinstance(id_, str) else None)


def call_syntax(template: ChatTemplate, form: CallForm) -> CallSyntax | None:
    """Returns the form in which a template writes tool calls."""
    asked = [{"content": _SAID}, *(_calling(count, form) for count in (1, 2))]
    said, one, two = template.attempt_batch(RenderRequest(_answer(each)) for each in asked)
    if not isinstance(said, Rendered) or not isinstance(one, Rendered):
        return None
    found = _around(said.text, one.text, 1)
    if found is None or not isinstance(two, Rendered):
        return found
    both = _around(said.text, two.text, 2)
    if both is None:
        return found
    return CallSyntax(**{**vars(found), "between": both.between, "closing": both.closing})


def _answer(answer: Mapping[str, Any]) -> Conversation:
    """A question with an answer, and tools, without which some templates write no calls."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Says it.",
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": "string", "description": "Where."}},
                    "required": [key],
                },
            },
        }
        for name, arguments in zip(_NAMES, _ARGUMENTS, strict=True)
        for key in arguments
    ]
    messages = [{"role": "user", "content": "How?"}, {"role": "assistant", **answer}]
    return Conversation(messages, tools)


def _calling(count: int, form: CallForm) -> dict[str, Any]:
    """An answer with calls, in the form that a template accepts."""
    calls = []
    for number, (name, arguments) in enumerate(zip(_NAMES, _ARGUMENTS, strict=True)):
        written = json.dumps(arguments) if form.arguments is str else arguments
        function = {"name": name, "arguments": written}
        calls.append({"type": "function", "id": f"call{number:05d}", "function": function})
    return {"tool_calls": calls[:count]} | ({"content": ""} if form.needs_content else {})


def _around(said: str, called: str, count: int) -> CallSyntax | None:
    """The form of the calls in a text that equals another one except for the answer."""
    start = common_prefix_length(said, called)
    same = common_prefix_length(said[start:][::-1], called[start:][::-1])
    text = called[start : len(called) - same]
    wanted = list(zip(_NAMES, _ARGUMENTS, strict=True))[:count]
    spots = [_call_in(text, *each) for each in wanted]
    if None in spots:
        return None
    (start, end, keys), (last_start, last_end, _) = spots[0], spots[-1]
    return CallSyntax(text[:start], text[end:last_start], text[last_end:], *keys)


def _call_in(
    text: str, name: str, arguments: Mapping[str, Any]
) -> tuple[int, int, tuple[str | None, str | None, str]] | None:
    """Where a text has a call, alone or in a list, and the last three fields of its form."""
    for start in range(len(text)):
        held = _json_at(text, start) if text[start] in "[{" else None
        if held is None:
            continue
        value, end = held
        for call in value if isinstance(value, list) else [value]:
            keys = _keys(call, name, arguments)
            if keys is not None:
                return start, end, (*keys, "")
        if value == arguments and (place := text.rfind(name, 0, start)) >= 0:
            return place, end, (None, None, text[place + len(name) : start])
    return None


def _keys(call: Any, name: str, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """The keys of the name and of the arguments in an object, if it is a call with these."""
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        call = call["function"]
    if not isinstance(call, dict) or name not in call.values():
        return None
    asked = (dict(arguments), json.dumps(arguments))
    found = [key for key, value in call.items() if value in asked]
    name_key = next(key for key, value in call.items() if value == name)
    return (name_key, found[0]) if found else None


def _json_at(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON value that begins at a place, and its end; None if there is none."""
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _after_blanks(text: str, place: int) -> int:
    return len(text) - len(text[place:].lstrip())


def _bare(text: str) -> str:
    return "".join(text.split())


def _pattern(literal: str) -> re.Pattern:
    """A pattern of a text with any white space between its words and around it."""
    words = (re.escape(word) for word in literal.split())
    return re.compile(r"\s*" + r"\s*".join(words))
