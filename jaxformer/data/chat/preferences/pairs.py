"""Pairs of answers as tokens, and as rows of a batch."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.data.chat.encoder import ChatEncoder, EncodedChat
from jaxformer.data.chat.lengths import TooLong, changes_in_words, check_sizes
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
        """The tokens before the answer."""
        return int(np.argmax(self.learned))

    def part(self, start: int, size: int) -> "Answer":
        """Returns at most `size` tokens from one on."""
        return Answer(self.tokens[start : start + size], self.learned[start : start + size])

    def cut(self, size: int) -> "Answer":
        """Returns at most `size` tokens: the beginning of the prompt goes first, see `Pair.cut`."""
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

        A token may hold the end of the prompt and the beginning of one answer. From there on, both
        sides are answers.
        """
        sides = [Answer(chat.tokens, chat.is_answer) for chat in (chosen, rejected)]
        size = min(len(side.tokens) for side in sides)
        same = chosen.tokens[:size] == rejected.tokens[:size]
        common = size if same.all() else int(np.argmin(same))
        start = min(common, *(int(np.argmax(side.learned)) for side in sides))
        return cls(*(_from(start, side) for side in sides), where)

    def check(self) -> None:
        """Raises DataError if a side has no answer, or both have the same."""
        if not self.has_answers:
            raise DataError(
                f"{self.where}: no answer: the chat template writes nothing of it, or does not "
                "mark it as the assistant's"
            )
        if not self.differs:
            raise DataError(
                f"{self.where}: both answers become the same tokens, so there is nothing to prefer"
            )

    @property
    def has_answers(self) -> bool:
        """Whether both sides have a token to predict."""
        return all(bool(side.learned[1:].any()) for side in self[:2])

    @property
    def differs(self) -> bool:
        """Whether the answers differ, and both have a token to predict."""
        chosen, rejected = (side.tokens for side in self[:2])
        return self.has_answers and not np.array_equal(chosen, rejected)

    @property
    def prompt_size(self) -> int:
        """The tokens before the answers."""
        return self.chosen.prompt_size

    @property
    def size(self) -> int:
        """The tokens of the longer side."""
        return max(len(self.chosen.tokens), len(self.rejected.tokens))

    def cut(self, size: int) -> "Pair":
        """Returns the pair with at most `size` tokens a side.

        The beginning of the prompt goes first, all but its last token, and then the end of the
        answers.
        """
        start = min(max(self.size - size, 0), max(self.prompt_size - 1, 0))
        return Pair(*(side.part(start, size) for side in self[:2]), self.where)


def encoded_pairs(
    encoder: ChatEncoder, rows: Sequence[tuple[Conversation, Conversation]]
) -> list[Pair]:
    """Returns rows of a chosen and a rejected conversation as tokens.

    Args:
        encoder: The encoder.
        rows: The conversations.

    Raises:
        DataError: The template refuses one, or there is nothing to prefer; names the line.
    """
    encoded = iter(encoder.encode_batch(side for row in rows for side in row))
    pairs = [Pair.of(next(encoded), next(encoded), row[0].where) for row in rows]
    for pair in pairs:
        pair.check()
    return pairs


class Pairs(NamedTuple):
    """Pairs that fit into rows."""

    kept: list[Pair]
    """The pairs, cut where that was asked for."""
    limit: int
    """The most tokens of a side."""
    num_cut: int
    """How many of them were longer."""
    num_dropped: int
    """How many pairs were left out."""

    @classmethod
    def fitting(cls, pairs: Sequence[Pair], limit: int, too_long: TooLong) -> "Pairs":
        """Cuts, drops or refuses pairs that are longer than a row.

        Args:
            pairs: The pairs.
            limit: The most tokens of a side.
            too_long: What becomes of longer ones.

        Returns:
            The pairs that are left.

        Raises:
            DataError: One is too long and may not be changed, an answer has no token, both are the
                same, or no pair is left; names the line.
        """
        for pair in pairs:
            pair.check()
        sizes = [pair.size for pair in pairs]
        check_sizes(sizes, [pair.where for pair in pairs], limit, too_long, "pairs")
        fitting = pairs if too_long == "cut" else [pair for pair in pairs if pair.size <= limit]
        # What is left of two answers may be the same.
        kept = [pair for pair in (pair.cut(limit) for pair in fitting) if pair.differs]
        if not kept:
            raise DataError(
                f"{pairs[0].where}: no pair fits into data.sequence_length = {limit} tokens: raise "
                f"it to {max(sizes)}"
            )
        cut = sum(pair.size > limit for pair in fitting)
        return cls(kept, limit, cut, len(pairs) - len(kept))

    def in_words(self) -> str:
        """Returns how much there is."""
        sides = [side for pair in self.kept for side in pair[:2]]
        total = sum(len(side.tokens) for side in sides)
        learned = sum(int(side.learned.sum()) for side in sides)
        count = "1 pair" if len(self.kept) == 1 else f"{len(self.kept):,} pairs"
        what = f"{count}, {total:,} tokens, {learned:,} of them in answers"
        return "; ".join([what, *changes_in_words(self.num_cut, self.num_dropped, self.limit)])


class PairExamples(ExampleSource):
    """Pairs of answers.

    Args:
        pairs: The pairs, of at most T tokens a side.
        length: T, to which rows are padded.
        pad_id: The padding token.
    """

    def __init__(self, pairs: Sequence[Pair], length: int, pad_id: int):
        self.pairs = pairs
        self._length, self._pad_id = length, pad_id

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns "inputs", "targets" and "weights", each [2, T].

        inputs[t] = x[t],  targets[t] = x[t + 1],  weights[t] = 1 if x[t + 1] is of the answer
        """
        del rng
        row = self.blank()
        for place, side in enumerate(self.pairs[index][:2]):
            size = len(side.tokens) - 1
            row["inputs"][place, :size] = side.tokens[:-1]
            row["targets"][place, :size] = side.tokens[1:]
            row["weights"][place, :size] = side.learned[1:]
        return row

    def blank(self) -> Batch:
        """Returns a row of padding, whose weights are 0."""
        shape = 2, self._length
        return {
            "inputs": np.full(shape, self._pad_id, np.int32),
            "targets": np.full(shape, self._pad_id, np.int32),
            "weights": np.zeros(shape, np.float32),
        }

    def fingerprint(self) -> str:
        """Returns a digest of all tokens, and of which belong to the answers."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            for tokens, learned in pair[:2]:
                digest.update(len(tokens).to_bytes(8, "little"))
                digest.update(tokens.astype("<i4").tobytes())
                digest.update(learned.astype(bool).tobytes())
        return digest.hexdigest()[:16]


def _from(start: int, side: Answer) -> Answer:
    """A side whose answer begins at a place, without what comes after its end."""
    if not side.learned.any():
        return side
    end = int(np.flatnonzero(side.learned)[-1]) + 1
    learned = side.learned[:end].copy()
    learned[start : int(np.argmax(learned))] = True
    return Answer(side.tokens[:end], learned)
