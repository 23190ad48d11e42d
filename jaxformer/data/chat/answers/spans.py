"""Where the answers of a conversation are in its rendered text.

A template without `{% generation %}` does not mark the characters of the assistant, and it may
write an answer differently when more messages follow. So a mark is inserted after the content of
each message. With the marks removed, an answer begins and ends where the whole text departs from
the following texts, compared from their last mark on:

    start = text of messages[:i] with the header of an answer
    end   = text of messages[: i + 1]
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from jaxformer.data.chat.calls import function_of, with_function
from jaxformer.data.chat.renderer import MARK
from jaxformer.data.chat.template import (
    ChatTemplate,
    Conversation,
    Message,
    Rendered,
    RenderRequest,
)
from jaxformer.errors import DataError

SpecialTokens = Sequence[tuple[int, int, int]]
"""(id, start, end) of each special token that the template wrote, in their order."""

_REMEDY = (
    "use a template that marks answers with {% generation %}, another one by its name "
    "(--data.template ChatML), or learn all tokens with --data.train-on all"
)
NOT_LEARNED = {"weight": 0, "train": False, "loss": False, "masked": True}
"""The fields and values that exclude a message from learning, in the files of OpenAI and Mistral,
of Axolotl, of ms-swift and of torchtune.
"""
_DIGITS = 0xFDE0
_MARK = re.compile(f"{MARK}([{chr(_DIGITS)}-{chr(_DIGITS + 15)}]+)")
_THOUGHT = re.compile(r"<think>\s*(</think>\s*)?\Z")
"""The reasoning with which the header of an answer may end: opened, or opened and closed."""
_LONGEST_THOUGHT = 64


class Span(NamedTuple):
    """Characters from `start` up to `end` that the assistant writes for the message at a place."""

    place: int
    start: int
    end: int


def assistant_places(chat: Conversation) -> list[int]:
    """Returns the places of the assistant's messages."""
    return [
        place for place, message in enumerate(chat.messages) if message.get("role") == "assistant"
    ]


def answers_of(chat: Conversation) -> list[int]:
    """Returns the places of the assistant's messages that are to be learned."""
    return [
        place
        for place in assistant_places(chat)
        if place >= chat.first and is_learned(chat.messages[place])
    ]


def with_last_answer_only(chat: Conversation) -> Conversation:
    """Returns the conversation with only its last answer to learn; the others are context."""
    return chat._replace(first=max(answers_of(chat), default=chat.first))


def unlearned_places(chat: Conversation) -> list[int]:
    """Returns the places of the assistant's messages that may not be learned."""
    return [place for place in assistant_places(chat) if not is_learned(chat.messages[place])]


def is_learned(message: Message) -> bool:
    """Whether a message may be learned: it has none of `NOT_LEARNED`."""
    return not any(message.get(key) == value for key, value in NOT_LEARNED.items())


def content_text(message: Message) -> str:
    """Returns the text of a message, without its calls and images."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, dict))


def marked(chat: Conversation) -> Conversation:
    """Returns a conversation with a mark after the content and the calls of each message."""
    messages = [
        dict(message)
        | _marked_content(message.get("content"), _mark(2 * place))
        | _marked_calls(message, _mark(2 * place + 1))
        for place, message in enumerate(chat.messages)
    ]
    return chat._replace(messages=messages)


def common_prefix_length(one: str, other: str) -> int:
    """Returns the length of the common start of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


class MarkedText:
    """The text of a marked conversation, and where its marks were."""

    def __init__(self, text: str):
        parts = _MARK.split(text)  # a text, the digits of a mark, a text, ...
        self.plain = "".join(parts[::2])
        self._ends: dict[int, int] = {}
        for digits, end in zip(parts[1::2], accumulate(map(len, parts[::2])), strict=False):
            self._ends.setdefault(_number(digits), end)

    def messages_within(self, span: Span) -> list[int]:
        """Returns the places of other messages whose text ends within a span."""
        inside = (n // 2 for n, end in self._ends.items() if span.start < end < span.end)
        return [place for place in inside if place != span.place]

    def common_end(self, tail: str | None) -> int | None:
        """Returns the end of the part of the text that equals a prefix of the conversation."""
        if tail is None:
            return None
        found = _MARK.match(tail)
        start = self._ends.get(_number(found[1])) if found else 0
        if start is None:
            return None
        rest = tail[found.end() :] if found else tail
        return start + common_prefix_length(rest, self.plain[start : start + len(rest)])


class AnswerFinder:
    """Finds the assistant's text in conversations that a template has rendered."""

    def __init__(self, template: ChatTemplate):
        self._template = template

    @property
    def has_blocks(self) -> bool:
        """Whether the template itself marks the assistant's text."""
        return self._template.has_generation

    def request(self, chat: Conversation, places: Sequence[int]) -> RenderRequest:
        """Returns the request to render a conversation and find the messages at some places."""
        return RenderRequest(chat, prefixes=() if self.has_blocks else _prefixes(places))

    def find(
        self,
        chats: Sequence[Conversation],
        places: Sequence[Sequence[int]],
        texts: Sequence[tuple[Rendered, SpecialTokens]],
    ) -> list[list[Span]]:
        """Returns where the assistant's messages at some places are."""
        rows = list(zip(chats, places, texts, strict=True))
        first = [
            _blocks(chat, own, rendered) if self.has_blocks else _matched(own, rendered)
            for chat, own, (rendered, _) in rows
        ]
        unclear = [row for row, spans in zip(rows, first, strict=True) if spans is None]
        second = iter(self._by_marks(unclear))
        found = [next(second) if spans is None else spans for spans in first]
        if self.has_blocks:
            return found
        return [
            [self._whole(chat, *text, span) for span in spans]
            for (chat, _, text), spans in zip(rows, found, strict=True)
        ]

    def _by_marks(self, rows: Sequence[tuple]) -> list[list[Span]]:
        """Returns the spans in conversations whose prefixes alone do not determine them."""
        if not rows:
            return []
        asked = [assistant_places(chat) if self.has_blocks else own for chat, own, _ in rows]
        rendered = self._template.render_batch(
            RenderRequest(marked(chat), prefixes=_prefixes(own))
            for (chat, _, _), own in zip(rows, asked, strict=True)
        )
        found = []
        for (chat, places, (text, _)), own, other in zip(rows, asked, rendered, strict=True):
            spans = self._reached(chat, own, text.text, other)
            found.append(_blocks_of(spans, places, text.spans) if self.has_blocks else spans)
        return found

    def _reached(
        self, chat: Conversation, places: Sequence[int], text: str, rendered: Rendered
    ) -> list[Span]:
        marks = MarkedText(rendered.text)
        tails = iter(rendered.tails)
        if marks.plain != text:
            raise self._error(chat, "the template does not copy the messages as they are")
        spans = []
        for place, header, turn in zip(places, tails, tails, strict=True):
            start = marks.common_end(header and _THOUGHT.sub("", header))
            end = marks.common_end(turn)
            if start is None or end is None:
                raise self._error(
                    chat,
                    f"the text of message {place + 1} is not there, or the template refuses the "
                    "messages up to it",
                )
            spans.append(Span(place, start, max(start, end)))
            others = [] if self.has_blocks else marks.messages_within(spans[-1])
            if others:
                raise self._error(
                    chat, f"message {others[0] + 1} is written within message {place + 1}"
                )
        return spans

    def _whole(
        self, chat: Conversation, rendered: Rendered, special: SpecialTokens, span: Span
    ) -> Span:
        """Returns the span of an answer, extended to the token that ends the turn."""
        text = rendered.text
        message = chat.messages[span.place]
        thought = _THOUGHT.search(text, max(span.start - _LONGEST_THOUGHT, 0), span.start)
        start = _outside(special, thought.start() if thought else span.start)
        if self._header and text.startswith(self._header, start):
            start += len(self._header)
        end = self._turn_end(text, special, start, _outside(special, span.end))
        if not _is_written(message, text[start:end]):
            raise self._error(
                chat,
                f"the text of message {span.place + 1} is not that of an answer: "
                f"{text[start:end].strip()[:80]!r}",
            )
        return Span(span.place, start, end)

    def _turn_end(self, text: str, special: SpecialTokens, start: int, end: int) -> int:
        """Returns the end of an answer, after the special token that ends it.

        Without one, the token that begins the next message ends it, unless it begins an answer.
        """
        last = max((stop for _, _, stop in special if start < stop <= end), default=0)
        if last and not text[last:end].strip():
            return last
        after = next(((begin, stop) for _, begin, stop in special if begin >= end), None)
        if after and not text[end : after[0]].strip() and self.may_end(text[slice(*after)]):
            return after[1]
        return end

    def may_end(self, name: str) -> bool:
        """Whether a special token may end an answer; those in the header of an answer may not."""
        return name not in self._header

    @cached_property
    def _header(self) -> str:
        """The header that the template writes before an answer, without `<think>`."""
        asked = Conversation([{"role": "user", "content": "a"}])
        try:
            before, after = self._template.render_batch(
                [RenderRequest(asked, prompt) for prompt in (False, True)]
            )
        except DataError:
            return ""
        begun = after.text.startswith(before.text)
        return _THOUGHT.sub("", after.text[len(before.text) :]) if begun else ""

    def _error(self, chat: Conversation, reason: str) -> DataError:
        return self._template.error_at(chat.where, f"{reason}; {_REMEDY}")


def _prefixes(places: Sequence[int]) -> tuple[tuple[int, bool], ...]:
    """The prefixes whose texts end where the answers at some places begin and end."""
    return tuple(cut for place in places for cut in ((place, True), (place + 1, False)))


def _matched(places: Sequence[int], rendered: Rendered) -> list[Span] | None:
    """The answers of a text that begins with all of its prefixes."""
    if None in rendered.prefixes:
        return None
    cuts = iter(rendered.prefixes)
    return [Span(*row) for row in zip(places, cuts, cuts, strict=True)]


def _blocks(chat: Conversation, places: Sequence[int], rendered: Rendered) -> list[Span] | None:
    """The `{% generation %}` blocks of the messages at some places, if each message has one."""
    if not places:
        return []
    every = assistant_places(chat)
    if len(rendered.spans) != len(every) or list(places) != every:
        return None
    return [Span(place, *block) for place, block in zip(places, rendered.spans, strict=True)]


def _blocks_of(
    spans: Sequence[Span], places: Sequence[int], blocks: Sequence[tuple[int, int]]
) -> list[Span]:
    """The `{% generation %}` blocks of the messages at some places."""
    found = []
    for start, end in blocks:  # each belongs to the last message that begins before its end
        begun = [span.place for span in spans if span.start < end]
        if begun and begun[-1] in places:
            found.append(Span(begun[-1], start, end))
    return found


def _is_written(message: Message, text: str) -> bool:
    """Whether the text of an answer contains the message's content, or else its calls."""
    written = "".join(text.split())
    # A template may leave out the reasoning before the answer.
    said = "".join(content_text(message).split()).rpartition("</think>")[2]
    called = name_of_call(message)
    return bool(written) and (said in written or (called is not None and called in text))


def _outside(special: SpecialTokens, place: int) -> int:
    """Returns a place, or the beginning of the special token that it is within."""
    return next((start for _, start, end in special if start < place < end), place)


def _marked_content(content: Any, mark: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"content": _with_mark(content, mark)}
    if not isinstance(content, Sequence):
        return {}
    parts = list(content)
    for number in reversed(range(len(parts))):
        part = parts[number]
        if isinstance(part, Mapping) and isinstance(part.get("text"), str) and part["text"].strip():
            parts[number] = {**part, "text": _with_mark(part["text"], mark)}
            break
    return {"content": parts}


def _marked_calls(message: Message, mark: str) -> dict[str, Any]:
    """The calls with a mark after the name of the last function."""
    name = name_of_call(message)
    if name is None:
        return {}
    *calls, last = message["tool_calls"]
    return {"tool_calls": [*calls, with_function(last, name=_with_mark(name, mark))]}


def name_of_call(message: Message) -> str | None:
    """Returns the name of the last function that a message calls; None if it calls none."""
    calls = message.get("tool_calls")
    if not calls or not isinstance(calls, Sequence):
        return None
    name = (function_of(calls[-1]) or {}).get("name")
    return name if isinstance(name, str) and name.strip() else None


def _with_mark(text: str, mark: str) -> str:
    """A text with a mark before the white space at its end, which a template may cut off."""
    end = len(text.rstrip())
    return text[:end] + mark + text[end:] if end else text


def _mark(number: int) -> str:
    return MARK + "".join(chr(_DIGITS + int(digit, 16)) for digit in f"{number:x}")


def _number(digits: str) -> int:
    return int("".join(f"{ord(digit) - _DIGITS:x}" for digit in digits), 16)
