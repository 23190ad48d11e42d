"""Pairs of answers as tokens, and as rows of a batch."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.data.chat.encoder import ChatEncoder, EncodedChat
from jaxformer.data.chat.examples import TooLong, check_sizes, describe_changes
from jaxformer.data.chat.template import Conversation
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.errors import DataError


class Answer(NamedTuple):
    """One side of a pair as tokens."""

    tokens: np.ndarray
    """int32 [tokens], the prompt and the answer."""
    learned: np.ndarray
    """bool [tokens], whether a token belongs to the answer."""

    @property
    def prompt_size(self) -> int:
        """The number of tokens before the answer."""
        return int(np.argmax(self.learned))

    def part(self, start: int, size: int) -> "Answer":
        """Returns at most `size` tokens from `start` on."""
        return Answer(self.tokens[start : start + size], self.learned[start : start + size])

    def cut(self, size: int) -> "Answer":
        """Returns at most `size` tokens: the prompt is cut first, see `Pair.cut`."""
        return self.part(min(max(len(self.tokens) - size, 0), max(self.prompt_size - 1, 0)), size)


class Pair(NamedTuple):
    """A prompt with both answers as tokens."""

    chosen: Answer
    rejected: Answer
    where: str
    """ "file:line"."""

    @classmethod
    def of(cls, chosen: EncodedChat, rejected: EncodedChat, where: str) -> "Pair":
        """Returns both sides, with answers that begin at the same token.

        One token may contain the end of the prompt and the beginning of one answer. Both answers
        begin at this token.
        """
        sides = [Answer(chat.tokens, chat.is_answer) for chat in (chosen, rejected)]
        size = min(len(side.tokens) for side in sides)
        same = chosen.tokens[:size] == rejected.tokens[:size]
        common = size if same.all() else int(np.argmin(same))
        start = min(common, *(int(np.argmax(side.learned)) for side in sides))
        return cls(*(_from(start, side) for side in sides), where)

    def check(self) -> None:
        """Raises DataError if both sides have the same tokens."""
        if not self.is_learned:
            raise DataError(
                f"{self.where}: both answers have the same tokens, so neither can be preferred"
            )

    @property
    def answers(self) -> tuple[Answer, Answer]:
        """Both sides."""
        return self.chosen, self.rejected

    @property
    def is_learned(self) -> bool:
        """Whether the answers differ, and both have a token to predict."""
        has_answers = all(side.learned[1:].any() for side in self.answers)
        return has_answers and not np.array_equal(self.chosen.tokens, self.rejected.tokens)

    @property
    def prompt_size(self) -> int:
        """The number of tokens before the answers."""
        return self.chosen.prompt_size

    @property
    def size(self) -> int:
        """The number of tokens of the longer side."""
        return max(len(self.chosen.tokens), len(self.rejected.tokens))

    def cut(self, size: int) -> "Pair":
        """Returns the pair with at most `size` tokens a side.

        The beginning of the prompt is removed first, except for its last token, then the end of the
        answers.
        """
        start = min(max(self.size - size, 0), max(self.prompt_size - 1, 0))
        return Pair(*(side.part(start, size) for side in self.answers), self.where)


def encoded_pairs(
    encoder: ChatEncoder, rows: Sequence[tuple[Conversation, Conversation]]
) -> list[Pair]:
    """Returns rows of a chosen and a rejected conversation as tokens."""
    encoded = iter(encoder.encode_answers([side for row in rows for side in row]))
    pairs = [Pair.of(next(encoded), next(encoded), row[0].where) for row in rows]
    for pair in pairs:
        pair.check()
    return pairs


class FittingRows(NamedTuple):
    """Pairs or judged answers that fit into rows."""

    kept: list[Any]
    """The pairs or answers, cut if so configured."""
    name: str
    """The name of a row in messages: "pair"."""
    changes: list[str]
    """Describes how many were cut and how many left out."""

    @classmethod
    def of(cls, rows: Sequence[Any], limit: int, too_long: TooLong, name: str) -> "FittingRows":
        """Cuts, drops or refuses rows of more than `limit` tokens a side."""
        sizes = [row.size for row in rows]
        check_sizes(sizes, [row.where for row in rows], limit, too_long, f"{name}s")
        fitting = rows if too_long == "cut" else [row for row in rows if row.size <= limit]
        # A row that was cut may have nothing left to learn, such as two equal answers.
        parts = [(row.size > limit, row.cut(limit)) for row in fitting]
        parts = [(is_cut, part) for is_cut, part in parts if part.is_learned]
        kept = [part for _, part in parts]
        if not kept:
            where = f"{rows[0].where}: " if rows else ""
            raise DataError(
                f"{where}no {name} fits into data.sequence_length = {limit} tokens: raise it to "
                f"{max(sizes, default=limit)}"
            )
        num_cut = sum(is_cut for is_cut, _ in parts)
        return cls(kept, name, describe_changes(num_cut, len(rows) - len(kept), limit))

    def summary(self) -> str:
        """Returns a summary: the numbers of rows and tokens."""
        answers = [answer for row in self.kept for answer in row.answers]
        judged = [row.desirable for row in self.kept if hasattr(row, "desirable")]
        parts = [
            f"{len(self.kept):,} {self.name}{'' if len(self.kept) == 1 else 's'}",
            *([f"{sum(judged):,} desirable and {judged.count(False):,} not"] if judged else []),
            f"{sum(len(answer.tokens) for answer in answers):,} tokens",
            f"{sum(int(answer.learned.sum()) for answer in answers):,} of them in answers",
        ]
        return "; ".join([", ".join(parts), *self.changes])


class PairExamples(ExampleSource):
    """Pairs of answers, padded to T tokens."""

    def __init__(self, pairs: Sequence[Pair], length: int, pad_id: int):
        self.pairs = pairs
        self._length, self._pad_id = length, pad_id

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns "inputs", "targets" and "weights", each [2, T].

        inputs[t] = x[t],  targets[t] = x[t + 1],  weights[t] = 1 if x[t + 1] is in the answer
        """
        del rng
        row = self.blank()
        for place, side in enumerate(self.pairs[index].answers):
            size = len(side.tokens) - 1
            row["inputs"][place, :size] = side.tokens[:-1]
            row["targets"][place, :size] = side.tokens[1:]
            row["weights"][place, :size] = side.learned[1:]
        return row

    def blank(self) -> Batch:
        shape = 2, self._length
        return {
            "inputs": np.full(shape, self._pad_id, np.int32),
            "targets": np.full(shape, self._pad_id, np.int32),
            "weights": np.zeros(shape, np.float32),
        }

    def fingerprint(self) -> str:
        """Returns a digest of all tokens, and of which ones belong to the answers."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            for tokens, learned in pair.answers:
                digest.update(len(tokens).to_bytes(8, "little"))
                digest.update(tokens.astype("<i4").tobytes())
                digest.update(learned.astype(bool).tobytes())
        return digest.hexdigest()[:16]


def _from(start: int, side: Answer) -> Answer:
    """A side whose answer begins at `start`, without the tokens after the answer."""
    end = int(np.flatnonzero(side.learned)[-1]) + 1
    learned = side.learned[:end].copy()
    learned[start : int(np.argmax(learned))] = True
    return Answer(side.tokens[:end], learned)
