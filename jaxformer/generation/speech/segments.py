"""Segments of a transcript: the text between two timestamps."""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

STRIDE = 2
"""Frames of the spectrogram for one timestamp."""


class Segment(NamedTuple):
    """The text between two times."""

    start: float
    """In seconds."""
    end: float
    """In seconds."""
    tokens: tuple[int, ...]
    """Including the timestamps."""
    place: int = 0
    """The number of its first token among those of the window."""


def split(
    tokens: Sequence[int], first_timestamp: int, *, frames: int, offset: int, seconds: float
) -> tuple[list[Segment], int]:
    """Cuts the tokens of a window at pairs of timestamps, in OpenAI's order.

    Tokens after the last pair are left to the next window, unless the text ends with a single
    timestamp, after which there is no speech. `frames` of the window belong to the sound, and
    `offset` frames are before it.

    Returns:
        The segments, and the frames after which the next window begins.

    References:
        Radford et al., 2022 (https://arxiv.org/abs/2212.04356), section 4.5, and
        `WhisperGenerationMixin._retrieve_segment` of transformers.
    """
    times = [token >= first_timestamp for token in tokens]
    pairs = [i + 1 for i in range(len(tokens) - 1) if times[i] and times[i + 1]]
    begin, step = offset * seconds, STRIDE * seconds
    single_end = times[-2:] == [False, True]
    if not pairs:
        last = frames // STRIDE
        stamps = [token for token, is_time in zip(tokens, times, strict=True) if is_time]
        if stamps and stamps[-1] != first_timestamp:
            last = stamps[-1] - first_timestamp
        return [Segment(begin, begin + last * step, tuple(tokens))], frames
    # The second timestamp of the last pair stays in its segment, unless one more segment follows.
    ends = [*pairs, len(tokens)] if single_end else [*pairs[:-1], pairs[-1] + 1]
    segments = []
    start = 0
    for end in ends:
        part = tuple(tokens[start:end])
        closing = part[-1] if single_end or end != ends[-1] else part[-2]
        first, last = (token - first_timestamp for token in (part[0], closing))
        segments.append(Segment(begin + first * step, begin + last * step, part, start))
        start = end
    if single_end:
        return segments, frames
    return segments, (tokens[start - 2] - first_timestamp) * STRIDE


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """Returns how much zlib compresses the tokens of a text; repetitions make it large."""
    size = int(math.log2(vocab_size) / 8) + 1
    content = b"".join(token.to_bytes(size, "little") for token in tokens)
    return len(content) / len(zlib.compress(content))


def previous_tokens(segments: Sequence[Segment], first_timestamp: int, most: int) -> list[int]:
    """Returns the last tokens of a transcript, which precede the next window."""
    tokens: list[int] = []
    for segment in segments:
        own = segment.tokens
        # The second timestamp of a pair is that of the next segment.
        doubled = len(own) > 2 and own[-2] >= first_timestamp
        tokens += own[:-1] if doubled else own
    return tokens[-most:]
