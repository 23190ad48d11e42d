"""Conversations as tokens, with the answers of the assistant known to the character."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxformer.data.chat.protected import Disguise, ProtectedTokenizer, TokenizedText
from jaxformer.data.chat.template import (
    ChatTemplate,
    Conversation,
    Message,
    Rendered,
    RenderRequest,
)
from jaxformer.errors import DataError

_REMEDY = (
    "use a template that marks answers with {% generation %}, another one by its name "
    "(--data.template ChatML), or --data.train-on last"
)
_NO_PREFIX = (
    "the text of the first {} messages is not how the text of all begins, so the template changes "
    "earlier turns and answers cannot be told from the rest: "
) + _REMEDY.replace("{", "{{").replace("}", "}}")


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

    An answer is what the template puts into `{% generation %}`, or, in a template without it, what
    the text of the messages up to an answer has more than the prompt for that answer:

        answer i = render(messages[: i + 1]) - render(messages[:i], add_generation_prompt=True)

    which takes a template whose text of a conversation begins with that of its first messages. The
    token that ends the turn belongs to the answer; white space after it does not. A token belongs
    to an answer if one of its characters does.

    Args:
        tokenizer: The tokenizer.
        template: The template.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        self._tokenizer, self._template = ProtectedTokenizer(tokenizer), template

    def encode(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> EncodedChat:
        """Returns the tokens of a conversation, in which every answer of the assistant is marked.

        Args:
            messages: The messages.
            tools: JSON schemas of the functions that the assistant may call.

        Raises:
            DataError: The template rejects the conversation, or the answers cannot be told from
                its text.
        """
        return self.encode_batch([Conversation(messages, tools)])[0]

    def encode_answer(
        self, prompt: Sequence[Message], answer: Sequence[Message]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a prompt and of an answer to it, int32 [tokens] each.

        Args:
            prompt: The messages before the answer.
            answer: The messages of the answer, the first of them the assistant's.

        Raises:
            DataError: The template rejects them, or the answer cannot be told from the text.
        """
        chat = Conversation([*prompt, *answer], first=len(prompt))
        return split_answer(self.encode_batch([chat])[0])

    def encode_prompt(self, messages: Sequence[Message]) -> np.ndarray:
        """Returns the tokens of a conversation up to the header of the next answer, int32 [tokens].

        Args:
            messages: The messages so far.

        Raises:
            DataError: The template rejects the conversation.
        """
        request = RenderRequest(Conversation(messages), add_generation_prompt=True)
        return self._tokenize([request])[0].tokens.tokens

    def end_of_turn(self) -> int | None:
        """Returns the special token that ends an answer; None where the template writes none.

        Raises:
            DataError: The template rejects a question with an answer.
        """
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        request = RenderRequest(Conversation(turns))
        (found,) = self._tokenize([request])
        special = self._tokenizer.special_in(found.rendered.text, found.tokens)
        last = special[-1] if special else None
        after = found.rendered.text[last[2] :] if last else found.rendered.text
        return None if after.strip() else last[0]

    def encode_batch(self, chats: Iterable[Conversation]) -> list[EncodedChat]:
        """Returns the tokens of conversations.

        Args:
            chats: The conversations; the answers among the first `first` messages are not marked.

        Raises:
            DataError: The template rejects one, or its answers cannot be told from the text; names
                the line.
        """
        chats, encoded = list(chats), []
        requests = [RenderRequest(chat, prefixes=self._prefixes(chat)) for chat in chats]
        for chat, found in zip(chats, self._tokenize(requests), strict=True):
            spans = tuple(self._spans(chat, found.rendered, found.tokens))
            answers = _answers(found.tokens, spans)
            text, special = found.rendered.text, found.spells_special
            encoded.append(EncodedChat(found.tokens.tokens, answers, text, spans, special))
        return encoded

    def _prefixes(self, chat: Conversation) -> tuple[tuple[int, bool], ...]:
        """What has to be measured to find the answers of a conversation."""
        if self._template.has_generation:
            return ((chat.first, True),) if chat.first else ()
        return tuple(
            cut for place in answers_of(chat) for cut in ((place, True), (place + 1, False))
        )

    def _tokenize(self, requests: Sequence[RenderRequest]) -> list["_Tokenized"]:
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
        """Raises DataError for a template that does more with a special token than to copy it."""
        if other._replace(text=disguise.undo(other.text)) != rendered:
            raise self._error(
                chat,
                "a message spells out a special token, and the template does not copy it as it "
                "is: take it out of the message",
            )

    def _spans(
        self, chat: Conversation, rendered: Rendered, text: TokenizedText
    ) -> list[tuple[int, int]]:
        """Returns the (start, end) of each answer in the text."""
        if self._template.has_generation:
            (least,) = rendered.prefixes or (0,)
            if least is None:
                raise self._error(chat, _NO_PREFIX.format(chat.first))
            return [span for span in rendered.spans if span[0] >= least]
        cuts = iter(rendered.prefixes)
        spans = []
        for place, start, end in zip(answers_of(chat), cuts, cuts, strict=True):
            if start is None or end is None:
                raise self._error(chat, _NO_PREFIX.format(place + (start is not None)))
            said, written = (
                "".join(text.split())
                for text in (said_in(chat.messages[place]), rendered.text[start:end])
            )
            if not written or said not in written:
                raise self._error(
                    chat,
                    f"the text of message {place + 1} is not that of an answer: {written[:80]!r}; "
                    + _REMEDY,
                )
            spans.append((start, self._turn_end(rendered.text, text, start, end)))
        return spans

    def _turn_end(self, characters: str, text: TokenizedText, start: int, end: int) -> int:
        """Returns the end of an answer without white space after its last special token."""
        special = self._tokenizer.special_in(characters, text)
        last = max((stop for _, _, stop in special if start < stop <= end), default=0)
        return last if last and not characters[last:end].strip() else end

    def _error(self, chat: Conversation, reason: str) -> DataError:
        where = f"{chat.where}: " if chat.where else ""
        return DataError(f"{where}{self._template.file}: {reason}")


def split_answer(chat: EncodedChat) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens before the answers of a conversation, and from there to their end."""
    places = np.flatnonzero(chat.is_answer)
    return chat.tokens[: places[0]], chat.tokens[places[0] : places[-1] + 1]


def _answers(text: TokenizedText, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the number of the answer that each token belongs to, int32 [T]."""
    answers = np.zeros(len(text.tokens), np.int32)
    for number, (start, end) in enumerate(spans, start=1):
        # Some tokenizers put a token without characters in front of a word.
        empty = (text.starts == text.ends) & (text.starts >= start) & (text.ends < end)
        answers[(text.starts < end) & (text.ends > start) | empty] = number
    return answers


def answers_of(chat: Conversation) -> list[int]:
    """Returns the places of the assistant's messages that are to be learned."""
    return [
        place
        for place, message in enumerate(chat.messages)
        if place >= chat.first and message.get("role") == "assistant"
    ]


def said_in(message: Message) -> str:
    """Returns the text of a message, without what is called or shown in it."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
