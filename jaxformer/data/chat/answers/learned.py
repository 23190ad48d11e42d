"""Collects the tokens and answers that a model learns from conversations."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from jaxformer.data.bad_rows import BadRows, each
from jaxformer.data.chat.answers.spans import answers_of, unlearned_places
from jaxformer.data.chat.encoder import ChatEncoder
from jaxformer.data.chat.examples import TooLong, check_sizes, describe_changes
from jaxformer.data.chat.template import Conversation
from jaxformer.errors import DataError

_CHUNK = 2048
"""The number of conversations that one process renders."""


class LearnedChats:
    """Tokenised conversations that fit into rows.

    Attributes:
        tokens: int32 [tokens] of each.
        answers: int32 [tokens] of each, the number of the answer that a token belongs to, from 1.
    """

    def __init__(self, sequence_length: int):
        """Starts empty; `sequence_length` is the maximum number of tokens of a row."""
        self.tokens: list[np.ndarray] = []
        self.answers: list[np.ndarray] = []
        self._limit = sequence_length
        self._places: list[str] = []
        self._spelled: list[str] = []
        self._cut = self._dropped = self._plain = self._context = self._unlearned = 0

    def add(
        self,
        encoder: ChatEncoder,
        chats: Sequence[Conversation],
        bad: BadRows,
        everything: bool = False,
    ) -> None:
        """Encodes conversations."""
        encode = partial(encoder.encode_answers, everything=everything)
        total = len(chats)
        chats = [chat for chat in chats if everything or answers_of(chat)]
        self._unlearned += total - len(chats)
        for start in range(0, len(chats), _CHUNK):
            for chat, encoded in each(encode, chats[start : start + _CHUNK], bad):
                self.tokens.append(encoded.tokens)
                self.answers.append(encoded.answers)
                self._places.append(chat.where)
                if encoded.spells_special:
                    self._spelled.append(chat.where)
                self._plain += chat.plain
                self._context += len(unlearned_places(chat))

    def check(self, too_long: TooLong) -> None:
        """Cuts, drops or refuses conversations that are longer than a row."""
        if not self.tokens:
            raise DataError("no conversation has an answer to learn: each has weight 0")
        sizes = [len(tokens) for tokens in self.tokens]
        check_sizes(sizes, self._places, self._limit, too_long, "conversations")
        kept = []
        for number, size in enumerate(sizes):
            if size > self._limit and too_long == "drop":
                continue
            # An answer may begin after the cut.
            if self.answers[number][1 : self._limit].any():
                kept.append(number)
                self._cut += size > self._limit
        self._dropped = len(sizes) - len(kept)
        if not kept:
            raise DataError(
                f"{self._places[0]}: no conversation has an answer within data.sequence_length = "
                f"{self._limit} tokens: raise it to {max(sizes)}"
            )
        self.tokens = [self.tokens[number][: self._limit] for number in kept]
        self.answers = [self.answers[number][: self._limit] for number in kept]

    def summary(self) -> str:
        """Returns a summary: the numbers of conversations, answers and tokens."""
        turns = sum(len(np.unique(answers[answers > 0])) for answers in self.answers)
        learned = sum(int((answers[1:] > 0).sum()) for answers in self.answers)
        total = sum(map(len, self.tokens))
        parts = [
            f"{_count(len(self.tokens), 'conversation')}, {_count(turns, 'answer')}, "
            f"{total:,} tokens, {learned:,} of them learned",
            *describe_changes(self._cut, self._dropped, self._limit),
        ]
        if self._spelled:
            parts.append(
                f"{len(self._spelled):,} spell out special tokens, which stay text there (first: "
                f"{self._spelled[0]})"
            )
        if self._context:
            parts.append(f"{_count(self._context, 'answer')} of weight 0 not learned")
        if self._unlearned:
            parts.append(f"{_count(self._unlearned, 'conversation')} without others left out")
        if self._plain:
            parts.append(
                f"{self._plain:,} are a prompt and its completion, read unchanged, without the "
                "chat template, which `chat` would use"
            )
        return "; ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
