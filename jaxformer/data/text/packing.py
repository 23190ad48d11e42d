"""Packing: arranges tokenised documents in rows of one length, as an index without copies."""

import abc
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxformer.data.dataset import padded
from jaxformer.io.scratch import spilled


class TokenRow(NamedTuple):
    """One packed row of tokens; all arrays are [T].

    Attributes:
        tokens: int32, the tokens; the padding token after the last.
        following: int32, the next token of each in its document, even beyond the row.
        valid: bool, False at padding.
        segments: int32, 1.. for each document in the row and 0 at padding; None if the row is one
            segment.
        positions: int32, each token's distance from the start of its segment; None if the row is
            one segment.
    """

    tokens: np.ndarray
    following: np.ndarray
    valid: np.ndarray
    segments: np.ndarray | None
    positions: np.ndarray | None


@dataclass(frozen=True)
class TokenStream:
    """Documents as one array: end-of-text, document 0, end-of-text, ..., the last, end-of-text.

    Document i with the end-of-text before it is `tokens[offsets[i] : offsets[i + 1]]`; the targets
    of these tokens are the same slice shifted by one. So every token, the first of a document and
    its end-of-text included, is predicted exactly once.

    Attributes:
        tokens: [tokens] of an integer type, usually a file mapped into memory.
        offsets: int64 [documents + 1], the index of each document's leading end-of-text.
        num_bytes: The size of the texts in UTF-8.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    num_bytes: int

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.offsets) - 1

    @property
    def num_targets(self) -> int:
        """The number of predicted tokens: all but the first end-of-text."""
        return len(self.tokens) - 1

    @property
    def shards(self) -> tuple["TokenStream", ...]:
        """The parts whose rows are made separately: only this stream."""
        return (self,)


@dataclass(frozen=True)
class TokenShards:
    """A corpus in several streams, in the order of its documents; each row is of one stream."""

    shards: tuple[TokenStream, ...]

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return sum(shard.num_documents for shard in self.shards)

    @property
    def num_targets(self) -> int:
        """The number of predicted tokens."""
        return sum(shard.num_targets for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """The size of the texts in UTF-8."""
        return sum(shard.num_bytes for shard in self.shards)


Tokens = TokenStream | TokenShards


class Rows(abc.ABC):
    """Rows of `sequence_length` tokens, which together contain every token of a stream once."""

    num_rows: int
    sequence_length: int

    @abc.abstractmethod
    def read(self, index: int) -> TokenRow:
        """Returns row `index`, arrays of [T]."""

    @abc.abstractmethod
    def blank(self) -> TokenRow:
        """Returns a row of padding, with the same arrays as the others."""


class Packing(abc.ABC):
    """How documents are arranged in rows; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def rows(self, stream: TokenStream, sequence_length: int, pad_id: int) -> Rows:
        """Returns the rows of a stream; the same stream gives the same rows."""


@dataclass(frozen=True)
class Joined(Packing):
    """Documents joined with end-of-text between them, and cut into rows at any place.

    Only the last row may end in padding. A token sees all earlier tokens of its row, including
    those of earlier documents.
    """

    def rows(self, stream: TokenStream, sequence_length: int, pad_id: int) -> Rows:
        """Returns the rows: row i starts at token i * sequence_length."""
        return _JoinedRows(stream, sequence_length, pad_id)


@dataclass(frozen=True)
class Packed(Packing):
    """Whole documents packed into rows, each a segment that attends only to itself.

    Every document starts with end-of-text at position 0. A document longer than a row is cut into
    full rows and a rest, each a separate segment. Rests and short documents are placed by best-fit
    decreasing: longest first, each into the row with the least sufficient space.

    References:
        Ding et al. 2024, Fewer Truncations Improve Language Modeling,
        https://arxiv.org/abs/2404.10830
    """

    def rows(self, stream: TokenStream, sequence_length: int, pad_id: int) -> Rows:
        starts, lengths = _pieces(stream.offsets, sequence_length)
        row_of = best_fit_decreasing(lengths, sequence_length)
        return PackedRows(stream, sequence_length, pad_id, starts, lengths, row_of)


class Cut(Packing):
    """The rows of another packing, `size` tokens each, cut into equal parts.

    Row i * parts + p is part p of row i. If a part begins within a document, a new segment begins
    there.
    """

    def __init__(self, packing: Packing, size: int, parts: int = 1):
        self._packing = packing
        self._size = size
        self._parts = parts
        self._whole: dict[int, Rows] = {}

    def into(self, parts: int) -> "Cut":
        """Returns the same with another number of parts; the whole rows are computed only once."""
        other = Cut(self._packing, self._size, parts)
        other._whole = self._whole
        return other

    def rows(self, stream: TokenStream, sequence_length: int, pad_id: int) -> Rows:
        """Returns the parts, in rows of at least their size."""
        if (found := self._whole.get(id(stream))) is None:
            found = self._whole[id(stream)] = self._packing.rows(stream, self._size, pad_id)
        return _CutRows(found, self._parts, sequence_length, pad_id)


def best_fit_decreasing(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Packs items into few rows by best-fit decreasing."""
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    row_of = np.empty(len(lengths), np.int64)
    open_rows = _OpenRows(capacity)
    # Items of one length are interchangeable, so all that fit rows of one space are placed at once.
    sizes, counts = np.unique(lengths, return_counts=True)
    place = 0
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        end = place + count
        while place < end:
            rows = open_rows.place(size, end - place)
            row_of[order[place : place + len(rows)]] = rows
            place += len(rows)
    return row_of


class _OpenRows:
    """The rows by their remaining space; among rows with equal space, the latest comes first."""

    def __init__(self, capacity: int):
        self._capacity, self._num_rows = capacity, 0
        self._rows: list[np.ndarray] = [np.empty(0, np.int64)] * (capacity + 1)
        self._spaces: list[int] = []  # the spaces that some row has left, ascending

    def place(self, size: int, count: int) -> np.ndarray:
        """Places up to `count` items of one size; returns their rows, at least one."""
        fit = bisect_left(self._spaces, size)
        is_new = fit == len(self._spaces)
        space = self._capacity if is_new else self._spaces[fit]
        # The tightest row stays the tightest as long as another item fits.
        each = space // size
        wanted = -(-count // each)
        rows = self._opened(wanted) if is_new else self._taken(space, wanted)
        placed = min(count, each * len(rows))
        in_last = placed - each * (len(rows) - 1)
        self._put(rows[:-1], space - each * size)
        self._put(rows[-1:], space - in_last * size)
        return np.repeat(rows, each)[:placed]

    def _opened(self, wanted: int) -> np.ndarray:
        self._num_rows += wanted
        return np.arange(self._num_rows - wanted, self._num_rows)

    def _taken(self, space: int, wanted: int) -> np.ndarray:
        rows = self._rows[space]
        kept = max(0, len(rows) - wanted)
        self._rows[space] = rows[:kept]
        if not kept:
            self._spaces.remove(space)
        return rows[kept:][::-1]

    def _put(self, rows: np.ndarray, space: int) -> None:
        if not len(rows) or not space:
            return
        if not len(self._rows[space]):
            insort(self._spaces, space)
        self._rows[space] = np.concatenate([self._rows[space], rows])


class _JoinedRows(Rows):
    def __init__(self, stream: TokenStream, sequence_length: int, pad_id: int):
        self._stream, self._pad_id = stream, pad_id
        self.sequence_length = sequence_length
        self.num_rows = -(-stream.num_targets // sequence_length)

    def read(self, index: int) -> TokenRow:
        start = index * self.sequence_length
        piece = self._stream.tokens[start : start + self.sequence_length + 1]
        return _unpacked(piece, self.sequence_length, self._pad_id)

    def blank(self) -> TokenRow:
        return _unpacked(np.zeros(1, np.int32), self.sequence_length, self._pad_id)


class PackedRows(Rows):
    """Rows of pieces of a stream, each a segment; `row_of` numbers the rows without gaps."""

    def __init__(
        self,
        stream: TokenStream,
        sequence_length: int,
        pad_id: int,
        starts: np.ndarray,
        lengths: np.ndarray,
        row_of: np.ndarray,
    ):
        self._stream, self._pad_id = stream, pad_id
        self.sequence_length = sequence_length
        order = np.argsort(row_of, kind="stable")
        self.num_rows = int(row_of.max()) + 1
        self._starts = spilled(starts[order])
        self._lengths = spilled(lengths[order])
        self._first = spilled(np.searchsorted(row_of[order], np.arange(self.num_rows + 1)))

    def pieces(self, index: int) -> Iterator[tuple[slice, slice]]:
        """Yields the places of each piece of a row: in the row and in the stream."""
        end = 0
        for piece in range(*self._first[index : index + 2]):
            start = int(self._starts[piece])
            length = int(self._lengths[piece])
            yield slice(end, end + length), slice(start, start + length)
            end += length

    def read(self, index: int) -> TokenRow:
        row = self.blank()
        for segment, (place, source) in enumerate(self.pieces(index), start=1):
            tokens = self._stream.tokens[source.start : source.stop + 1]
            row.tokens[place] = tokens[:-1]
            row.following[place] = tokens[1:]
            row.valid[place] = True
            row.segments[place] = segment
            row.positions[place] = np.arange(len(tokens) - 1)
        return row

    def blank(self) -> TokenRow:
        size = self.sequence_length
        tokens = np.full(size, self._pad_id, np.int32)
        zeros = np.zeros(size, np.int32)
        return TokenRow(tokens, tokens.copy(), np.zeros(size, bool), zeros, zeros.copy())


class _CutRows(Rows):
    def __init__(self, whole: Rows, parts: int, sequence_length: int, pad_id: int):
        self._whole = whole
        self._parts = parts
        self._pad_id = pad_id
        self._size = -(-whole.sequence_length // parts)
        self.sequence_length = sequence_length
        self.num_rows = whole.num_rows * parts

    def read(self, index: int) -> TokenRow:
        number, part = divmod(index, self._parts)
        return self._part(self._whole.read(number), part)

    def blank(self) -> TokenRow:
        return self._part(self._whole.blank(), 0)

    def _part(self, row: TokenRow, part: int) -> TokenRow:
        place = slice(part * self._size, (part + 1) * self._size)
        size = self.sequence_length
        tokens, following = (padded(row[i][place], size, self._pad_id) for i in range(2))
        valid = padded(row.valid[place], size, False)
        if row.segments is None:
            return TokenRow(tokens, following, valid, None, None)
        segments = row.segments[place]
        positions = row.positions[place]
        first = segments == segments[0]
        positions = np.where(first & (segments > 0), positions - positions[0], positions)
        segments = np.where(segments > 0, segments - segments[0] + 1, 0)
        return TokenRow(
            tokens, following, valid, padded(segments, size, 0), padded(positions, size, 0)
        )


def _pieces(offsets: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts each document into pieces of at most `size`: their starts and lengths, in order."""
    lengths = np.diff(offsets)
    counts = -(-lengths // size)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    within = (np.arange(counts.sum()) - first) * size
    return np.repeat(offsets[:-1], counts) + within, np.minimum(
        np.repeat(lengths, counts) - within, size
    )


def _unpacked(tokens: np.ndarray, size: int, pad_id: int) -> TokenRow:
    """Returns tokens and the token after them as a row of one segment."""
    tokens = tokens.astype(np.int32)
    return TokenRow(
        padded(tokens[:-1], size, pad_id),
        padded(tokens[1:], size, pad_id),
        np.arange(size) < len(tokens) - 1,
        None,
        None,
    )
