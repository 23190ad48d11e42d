"""One transcript from the texts of chunks that overlap."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

Times = list[tuple[float, float]]
"""When each token begins and ends, in seconds."""
_WINDOW = 1500
"""The timestamps of a window of 30 seconds."""


class ChunkText(NamedTuple):
    """The text of a chunk."""

    tokens: list[int]
    """The tokens of the text, and timestamps."""
    times: list[float] | None
    """The times of the tokens, in seconds from the chunk's start; None: unknown."""
    start: float
    """The seconds of the sound before the chunk."""
    seconds: float
    """The seconds of the chunk."""
    left: float
    """The seconds at its beginning that the chunk before it reads too."""
    right: float
    """The seconds at its end that the chunk after it reads too."""


class JoinedSegment(NamedTuple):
    """The text between two timestamps."""

    start: float | None
    """In seconds; None: without a timestamp."""
    end: float | None
    """In seconds; None: without a timestamp."""
    tokens: list[int]
    """Without timestamps."""
    times: Times
    """The times of the tokens; empty if unknown."""


class Joiner:
    """Joins the texts of chunks, in their order, as the pipeline of transformers does.

    A segment ends at a timestamp, unless the next chunk continues there: the texts of both are then
    merged at their common tokens. Without timestamps all texts are one segment. `end` is the lowest
    special token, and `step` the seconds from a timestamp to the next.

    References:
        `WhisperTokenizer._decode_asr` of transformers.
    """

    def __init__(self, first_timestamp: int, end: int, step: float):
        self._first, self._end, self._step = first_timestamp, end, step
        self._start: float | None = None
        self._texts: list[list[int]] = []
        self._times: list[Times] = []
        self._skips = False
        """Whether the next timestamp belongs to one that was skipped."""

    def add(self, chunk: ChunkText) -> Iterator[JoinedSegment]:
        """Yields the segments that end within a chunk."""
        early = chunk.left / self._step + self._first
        late = self._late(chunk)
        clock = self._clock(chunk.tokens)
        own, times = [], []
        for place, token in enumerate(chunk.tokens):
            if token < self._end:
                own.append(token)
                if chunk.times is not None:
                    begin = chunk.times[place - 1] if place else 0.0
                    both = begin + chunk.start, chunk.times[place] + chunk.start
                    times.append(tuple(round(second, 2) for second in both))
            elif token >= self._first:
                second = round(clock[place] + chunk.start, 2)
                if late is not None and token >= late:
                    self._skips = True
                elif self._skips or (self._texts and token < early):
                    self._skips = False
                elif self._start is None:
                    self._start = second
                elif second != self._start:
                    self._keep(own, times)
                    yield self._closed(second)
                    own, times = [], []
        if own:
            self._keep(own, times)
        elif not any(self._texts):
            self._start, self._texts, self._times = None, [], []

    def close(self) -> Iterator[JoinedSegment]:
        """Yields the last segment, if no timestamp ended it."""
        if self._texts:
            yield self._closed(None)

    def _keep(self, tokens: list[int], times: Times) -> None:
        self._texts.append(tokens)
        self._times.append(times)

    def _closed(self, end: float | None) -> JoinedSegment:
        found = JoinedSegment(self._start, end, *merged(self._texts, self._times))
        self._start, self._texts, self._times = None, [], []
        return found

    def _late(self, chunk: ChunkText) -> int | None:
        """Returns the timestamp from which on a chunk is left to the next one."""
        late = None
        if chunk.right:
            for token in reversed(chunk.tokens):
                if token < self._first:
                    continue
                own = (token - self._first) * self._step
                if late is not None and own < chunk.seconds - chunk.right:
                    break
                late = token
        return late

    def _clock(self, tokens: Sequence[int]) -> dict[int, float]:
        """Returns the seconds of each timestamp of a chunk, by its place.

        A chunk may be written in several windows, whose timestamps begin at 0 again.
        """
        found: dict[int, float] = {}
        before = latest = passed = 0.0
        for place, token in enumerate(tokens):
            if token < self._first:
                continue
            own = (token - self._first) * self._step
            if own < latest:
                pair = all(each >= self._first for each in tokens[place - 2 : place])
                if place >= 2 and not pair:
                    passed += _WINDOW * self._step
                else:
                    latest = before
                    passed += before
            before, latest = latest, own
            found[place] = own + passed
        return found


def merged(texts: Sequence[list[int]], times: Iterable[Times]) -> tuple[list[int], Times]:
    """Merges the tokens of texts, each of which begins with roughly the end of the one before.

    Two texts are overlaid at the shift with the largest share of equal tokens, in case of ties the
    one with the longer overlap. The first half of the overlap is taken from the left text. A token
    equals only one that is not earlier; empty lists of times mean unknown times.

    References:
        `_find_longest_common_sequence` of transformers' Whisper.
    """
    (left, *rest), (left_times, *rest_times) = texts, times
    tokens: list[int] = []
    spans: Times = []
    for right, right_times in zip(rest, rest_times, strict=True):
        left_cut, right_cut = _cuts(left, right, left_times, right_times)
        tokens += left[:left_cut]
        spans += left_times[:left_cut]
        left, left_times = right[right_cut:], right_times[right_cut:]
    return tokens + left, spans + left_times


def _cuts(
    left: list[int], right: list[int], left_times: Times, right_times: Times
) -> tuple[int, int]:
    """Returns where the left text ends, and where the right one continues."""
    a, b = np.array(left), np.array(right)
    equal = a[:, None] == b[None, :] if len(a) and len(b) else np.zeros((len(a), len(b)), bool)
    if left_times:
        orders = [[one <= other for other in right_times] for one in left_times]
        equal &= np.array(orders, bool).reshape(equal.shape)
    best, cuts = 0.0, (len(left), 0)
    for shift in range(1, len(left) + len(right)):
        # The last `shift` tokens of the left text over the first of the right one.
        count = int(np.trace(equal, offset=shift - len(left)))
        score = count / shift + shift / 10_000
        if count > 1 and score > best:
            begin, end = max(0, len(left) - shift), min(len(left), len(left) + len(right) - shift)
            first, last = max(0, shift - len(left)), min(len(right), shift)
            best, cuts = score, ((begin + end) // 2, (first + last) // 2)
    return cuts
