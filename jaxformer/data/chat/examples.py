"""Tokenised conversations as rows of a batch: packed, or one per row."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.objectives.base import next_tokens
from jaxformer.data.rows import too_long_error
from jaxformer.data.text.packing import PackedRows, TokenStream, best_fit_decreasing

LossPer = Literal["token", "answer"]
TooLong = Literal["error", "cut", "drop"]


class ChatPacking(abc.ABC):
    """How conversations are arranged in rows; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def rows(self, lengths: Sequence[int], sequence_length: int) -> np.ndarray:
        """Returns the row of each conversation, int [conversations], numbered without gaps.

        Args:
            lengths: The number of tokens of each conversation.
            sequence_length: The number of tokens of a row.
        """


@dataclass(frozen=True)
class PackedChats(ChatPacking):
    """Several conversations per row, each a segment whose positions start at 0.

    They do not attend to each other, so the loss equals that of one conversation per row, without
    the padding. They are placed by best-fit decreasing: longest first, each into the row with the
    least sufficient space.
    """

    def rows(self, lengths, sequence_length):
        return best_fit_decreasing(np.asarray(lengths), sequence_length)


@dataclass(frozen=True)
class PaddedChats(ChatPacking):
    """One conversation per row, with padding after it."""

    def rows(self, lengths, sequence_length):
        return np.arange(len(lengths))


class ChatExamples(ExampleSource):
    """Conversations, int32 [tokens] each; `weights` are the weights of the predictions."""

    def __init__(
        self,
        tokens: Sequence[np.ndarray],
        weights: Sequence[np.ndarray],
        packing: ChatPacking,
        sequence_length: int,
        pad_id: int,
    ):
        self._weights = np.concatenate(weights)
        offsets = np.cumsum([0, *map(len, tokens)])
        # The last token of a conversation has no target.
        lengths = np.diff(offsets) - 1
        row_of = packing.rows(lengths, sequence_length)
        stream = TokenStream(np.concatenate(tokens), offsets, 0)
        self._rows = PackedRows(stream, sequence_length, pad_id, offsets[:-1], lengths, row_of)

    def __len__(self) -> int:
        return self._rows.num_rows

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns "inputs", "targets", "weights", "segments" and "positions", each [T].

        inputs[t] = x[t],  targets[t] = x[t + 1],  weights[t] = w[t + 1]
        """
        row = next_tokens(self._rows.read(index))
        for place, source in self._rows.pieces(index):
            row["weights"][place] = self._weights[source.start + 1 : source.stop + 1]
        return row

    def blank(self) -> Batch:
        return next_tokens(self._rows.blank())


def answer_weights(answers: np.ndarray, per: LossPer) -> np.ndarray:
    """Returns the weight of the prediction of each token of a conversation, float32 [tokens].

        per token: w[t] = 1 in an answer,  per answer: w[t] = 1 / (tokens of its answer)

    The first token of a conversation is never predicted.
    """
    counted = answers.copy()
    counted[0] = 0
    if per == "token":
        return (counted > 0).astype(np.float32)
    sizes = np.bincount(counted)
    return np.where(counted > 0, 1 / np.maximum(sizes[counted], 1), 0).astype(np.float32)


def check_sizes(
    sizes: Sequence[int], places: Sequence[str], limit: int, too_long: TooLong, what: str
) -> None:
    """Raises DataError if rows are too long and `too_long` is "error"."""
    if too_long == "error" and max(sizes, default=0) > limit:
        remedy = "cut them or leave them out with --data.too-long cut or drop"
        raise too_long_error(sizes, places, limit, "data.sequence_length", what, remedy)


def describe_changes(num_cut: int, num_dropped: int, limit: int) -> list[str]:
    """Describes how many rows were cut and how many were left out, if any."""
    cut = [f"{num_cut:,} cut to {limit} tokens"] if num_cut else []
    return cut + ([f"{num_dropped:,} longer ones left out"] if num_dropped else [])
