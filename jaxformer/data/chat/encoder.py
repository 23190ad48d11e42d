"""Encodes conversations as tokens, with the exact characters of the assistant's answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxformer.data.chat.answers.spans import AnswerFinder, Span, answers_of, unlearned_places
from jaxformer.data.chat.calls import CallForm, call_form, convert_calls
from jaxformer.data.chat.protected import Disguise, ProtectedTokenizer, TokenizedText
from jaxformer.data.chat.template import (
    ChatTemplate,
    Conversation,
    Message,
    Rendered,
    RenderRequest,
)
from jaxformer.errors import DataError

_TURNS = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


@dataclass(frozen=True)
class EncodedChat:
    """A conversation as tokens."""

    tokens: np.ndarray
    """int32 [T]."""

    answers: np.ndarray
    """int32 [T], the number of the answer that a token belongs to, from 1; 0 for all others."""

    text: str
    """The rendered text."""

    spans: tuple[tuple[int, int], ...]
    """The (start, end) of each answer in the text, in characters."""

    spells_special: bool
    """Whether a message spells out a special token, which is ordinary text there."""

    @property
    def is_answer(self) -> np.ndarray:
        """Whether a token belongs to an answer, bool [T]."""
        return self.answers > 0


class _Tokenized(NamedTuple):
    rendered: Rendered
    tokens: TokenizedText
    spells_special: bool


class ChatEncoder:
    """Renders conversations with a chat template and tokenises them.

    `answers/spans.py` finds the answers in a text. The token that ends the turn belongs to the
    answer, even if it begins the next message or the template leaves it out after the last answer;
    white space after it does not. A token belongs to an answer if one of its characters does.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        self._tokenizer = ProtectedTokenizer(tokenizer)
        self._template = template
        self._finder = AnswerFinder(template)

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> EncodedChat:
        """Returns the tokens of a conversation, in which every answer of the assistant is marked.

        Args:
            messages: The messages.
            tools: JSON schemas of the functions that the assistant may call.

        Raises:
            DataError: The template rejects the conversation, or the answers cannot be found in its
                text.
        """
        return self.encode_batch([Conversation(messages, tools)])[0]

    def encode_prompt(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Returns the tokens of a conversation up to the header of the next answer, int32 [tokens].

        Args:
            messages: The messages so far.
            tools: JSON schemas of the functions that the assistant may call.

        Raises:
            DataError: The template rejects the conversation.
        """
        chat = self._readable(Conversation(messages, tools))
        return self._tokenize([RenderRequest(chat, add_generation_prompt=True)])[0].tokens.tokens

    def end_of_turn(self) -> int | None:
        """Returns the special token that ends an answer; None if the template writes none.

        Raises:
            DataError: The template rejects a question with an answer.
        """
        (found,) = self._tokenize([RenderRequest(Conversation(_TURNS))])
        special = self._special(found)
        last = special[-1] if special else None
        after = found.rendered.text[last[2] :] if last else found.rendered.text
        if not after.strip():
            return last[0]
        return self._message_start[0] if self._message_start else None

    @cached_property
    def _message_start(self) -> tuple[int, str] | None:
        """The id and the name of the token that begins a message and ends the answer before it.

        With such a template, the last answer of a conversation has no end token.
        """
        turns = [*_TURNS, {"role": "user", "content": "c"}]
        try:
            whole, next_ = self._tokenize([RenderRequest(Conversation(c)) for c in (_TURNS, turns)])
        except DataError:
            return None
        text = next_.rendered.text
        end = len(whole.rendered.text.rstrip())
        ends = [stop for _, _, stop in self._special(whole)]
        if end in ends or not text.startswith(whole.rendered.text[:end]):
            return None
        after = (found for found in self._special(next_) if found[1] >= end)
        first = next(after, None)
        if first is None or text[end : first[1]].strip():
            return None
        name = text[first[1] : first[2]]
        return (first[0], name) if self._finder.may_end(name) else None

    def encode_batch(
        self, chats: Iterable[Conversation], everything: bool = False
    ) -> list[EncodedChat]:
        """Returns the tokens of conversations.

        Args:
            chats: The conversations; the answers among the first `first` messages are not marked.
            everything: Whether each whole text is one answer, except for messages that may not be
                learned.

        Raises:
            DataError: The template rejects one, or its answers cannot be found in the text; names
                the line.
        """
        chats = [self._readable(chat) for chat in chats]
        places = [unlearned_places(chat) if everything else answers_of(chat) for chat in chats]
        rows = list(zip(chats, places, strict=True))
        texts = self._tokenize([self._finder.request(*row) for row in rows])
        rendered = [(text.rendered, self._special(text)) for text in texts]
        found = self._finder.find(chats, places, rendered)
        encode = self._complement if everything else self._answers
        return [encode(*row) for row in zip(chats, texts, found, strict=True)]

    def encode_answers(
        self, chats: Sequence[Conversation], everything: bool = False
    ) -> list[EncodedChat]:
        """Like `encode_batch`, but a text without an answer is an error as well."""
        found = self.encode_batch(chats, everything)
        for chat, encoded in zip(chats, found, strict=True):
            if not encoded.answers[1:].any():
                raise DataError(
                    f"{chat.where}: no answer: the chat template leaves it out, or does not mark "
                    "it as the assistant's"
                )
        return found

    def _readable(self, chat: Conversation) -> Conversation:
        """A conversation whose tool calls have the form that the template accepts."""
        if any(message.get("tool_calls") for message in chat.messages):
            return convert_calls(chat, self.call_form, self._template.file)
        return chat

    @cached_property
    def call_form(self) -> CallForm:
        """The form of tool calls that the template accepts."""
        return call_form(self._template)

    def _answers(self, chat: Conversation, text: _Tokenized, spans: Sequence[Span]) -> EncodedChat:
        """Returns a conversation whose answers are the spans."""
        numbers = {place: n for n, place in enumerate(sorted({s.place for s in spans}), start=1)}
        answers = np.zeros(len(text.tokens.tokens), np.int32)
        for span in spans:
            answers[_within(text.tokens, span)] = numbers[span.place]
        tokens = text.tokens.tokens
        characters = text.rendered.text
        cuts = [(span.start, span.end) for span in spans]
        if self._is_open(chat, characters, spans):
            id_, name = self._message_start
            tokens = np.append(tokens, np.int32(id_))
            answers = np.append(answers, answers.max())
            cuts[-1], characters = (cuts[-1][0], len(characters + name)), characters + name
        return EncodedChat(tokens, answers, characters, tuple(cuts), text.spells_special)

    def _is_open(self, chat: Conversation, text: str, spans: Sequence[Span]) -> bool:
        """Whether the last message is an answer without an end in the text."""
        if not spans or spans[-1].place != len(chat.messages) - 1 or self._finder.has_blocks:
            return False
        last = chat.messages[-1]
        return (
            not last.get("tool_calls") and spans[-1].end >= len(text) and bool(self._message_start)
        )

    def _complement(
        self, chat: Conversation, text: _Tokenized, spans: Sequence[Span]
    ) -> EncodedChat:
        """Returns a conversation in which everything except the spans is learned."""
        del chat
        answers = np.ones(len(text.tokens.tokens), np.int32)
        cuts, done = [], 0
        for span in spans:
            answers[_within(text.tokens, span)] = 0
            cuts.append((done, span.start))
            done = span.end
        cuts.append((done, len(text.rendered.text)))
        return EncodedChat(
            text.tokens.tokens, answers, text.rendered.text, tuple(cuts), text.spells_special
        )

    def _special(self, text: _Tokenized) -> list[tuple[int, int, int]]:
        return self._tokenizer.special_in(text.rendered.text, text.tokens)

    def _tokenize(self, requests: Sequence[RenderRequest]) -> list[_Tokenized]:
        """Renders and tokenises chats; names of special tokens in messages are ordinary text."""
        disguises = {
            number: self._tokenizer.disguised(request.chat.values())
            for number, request in enumerate(requests)
            if self._tokenizer.spells_special(request.chat.values())
        }
        disguised = [
            requests[number]._replace(chat=requests[number].chat.with_values(disguise.values))
            for number, disguise in disguises.items()
        ]
        every = self._template.render_batch([*requests, *disguised])
        rendered = every[: len(requests)]
        texts = self._tokenizer.encode([chat.text for chat in rendered])
        for (number, disguise), other in zip(
            disguises.items(), every[len(requests) :], strict=True
        ):
            self._check_disguise(requests[number].chat, disguise, rendered[number], other)
            texts[number] = self._tokenizer.encode_disguised(disguise, other.text)
        rows = enumerate(zip(rendered, texts, strict=True))
        return [_Tokenized(*row, number in disguises) for number, row in rows]

    def _check_disguise(
        self, chat: Conversation, disguise: Disguise, rendered: Rendered, other: Rendered
    ) -> None:
        """Raises DataError if a template does not merely copy a special token in a message."""
        if other._replace(text=disguise.undo(other.text)) != rendered:
            raise self._template.error_at(
                chat.where,
                "a message spells out a special token, and the template does not copy it as it "
                "is: take it out of the message",
            )


def _within(text: TokenizedText, span: Span) -> np.ndarray:
    """Whether each token has a character within a span, bool [T]."""
    start, end = span.start, span.end
    # Some tokenizers add a token without characters before a word.
    empty = (text.starts == text.ends) & (text.starts >= start) & (text.ends < end)
    return (text.starts < end) & (text.ends > start) | empty
