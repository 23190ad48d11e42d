"""Transcribing a sound in chunks that overlap, many at once, with the decoder of Whisper."""

from collections.abc import Sequence
from typing import Any

from jaxformer.data.sound import SoundStream
from jaxformer.generation.speech.chunks import Chunk, Chunking, Progress, Timing, batches, chunks_of
from jaxformer.generation.speech.joining import ChunkText, JoinedSegment, Joiner
from jaxformer.generation.speech.segments import STRIDE
from jaxformer.generation.speech.spectrograms import WindowSpectrogram
from jaxformer.generation.speech.windows import Row, Transcriber, Written
from jaxformer.generation.speech.words import grouped, timed_words


def transcribe_chunks(
    transcriber: Transcriber,
    stream: SoundStream,
    cut: Chunking,
    timing: Timing,
    progress: Progress | None,
) -> dict[str, Any]:
    """Returns the result of `transcribe`, from chunks that are written in batches and joined.

    The sound has the sampling rate of the model; chunks are written without the text before them.
    """
    features = transcriber.features
    rate, second = features.sampling_rate, STRIDE * features.seconds_per_frame
    duration = stream.length / rate
    end = transcriber.config.end_tokens[0]
    joiner = Joiner(transcriber.first_timestamp, end, second)
    found: list[JoinedSegment] = []
    rows: list[Row] = []
    for batch in batches(chunks_of(stream, cut), cut.batch_size):
        # All frames of a window are written, of which the last may be silence.
        sounds = [WindowSpectrogram(features, each.samples, features.num_frames) for each in batch]
        rows = [
            Row(sound, chunk.start // features.hop)
            for sound, chunk in zip(sounds, batch, strict=True)
        ]
        written: list[list[Written]] = [[] for _ in rows]
        while active := [n for n, row in enumerate(rows) if row.left]:
            texts = transcriber.advance([rows[n] for n in active], timing)
            for n, text in zip(active, texts, strict=True):
                written[n].append(text)
        for chunk, parts in zip(batch, written, strict=True):
            found += joiner.add(_text(chunk, parts, rate))
        if progress is not None:
            done = (chunk.start + len(chunk.samples) - chunk.right) / rate
            progress(done, max(done, duration))
    found += joiner.close()
    tokenizer = transcriber.pretrained.prompt_encoder.tokenizer
    language = transcriber.language_of(rows[-1])
    result = {
        "text": "".join(tokenizer.decode(segment.tokens) for segment in found).strip(),
        "language": language,
        "duration": duration,
    }
    if timing == "none":
        return result
    segments, last = [], 0.0
    for segment in found:
        start = last if segment.start is None else segment.start
        last = max(start, duration) if segment.end is None else segment.end
        own = {"start": start, "end": last, "text": tokenizer.decode(segment.tokens)}
        own["tokens"] = segment.tokens
        if timing == "words":
            groups = grouped(tokenizer, segment.tokens, language)
            own["words"] = timed_words(groups, segment.times)
        segments.append(own)
    return result | {"segments": segments}


def _text(chunk: Chunk, parts: Sequence[Written], rate: int) -> ChunkText:
    """Returns the text of a chunk, written in one or several windows."""
    tokens, times = [], []
    for part in parts:
        for segment in part.segments:
            tokens += segment.tokens
            if part.times is not None:
                own = slice(segment.place, segment.place + len(segment.tokens))
                times += part.times[own].tolist()
    known = any(part.times is not None for part in parts)
    sizes = chunk.start, len(chunk.samples), chunk.left, chunk.right
    return ChunkText(tokens, times if known else None, *(size / rate for size in sizes))
