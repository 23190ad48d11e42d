"""Transcribes a sound with a CTC head (wav2vec 2.0, HuBERT)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxformer.data.sound import SoundStream
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import ConfigError
from jaxformer.generation.speech.chunks import Chunking, Progress, Timing
from jaxformer.generation.speech.ctc import align, best_path, prefix_beams
from jaxformer.generation.speech.features import waveform_features_of
from jaxformer.generation.speech.frames import chunk_log_probs
from jaxformer.generation.speech.language_model import (
    LanguageModel,
    WordScorer,
    read_language_model,
)
from jaxformer.generation.speech.words import timed_words
from jaxformer.models import CTC
from jaxformer.pretrained.model import Pretrained

_SPECIAL = "<>"
"""Stands for tokens without text: no word has these letters."""
_OPTIONS = ("num_beams", "length_bonus", "language_model")


def transcribe_labels(
    pretrained: Pretrained,
    stream: SoundStream,
    cut: Chunking,
    *,
    timestamps: Timing = "segments",
    num_beams: int = 1,
    length_bonus: float = 0.0,
    language_model: LanguageModel | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns the result of `jaxformer.transcribe` for a model with a CTC head.

    There is a segment for each stretch between two pauses; a sound of one chunk is one stretch.
    """
    features = waveform_features_of(pretrained)
    tokenizer = pretrained.prompt_encoder.tokenizer
    (head,) = (head for head in pretrained.config.heads if isinstance(head, CTC))
    blank = head.blank
    written = (tokenizer.decode([n]) or _SPECIAL for n in range(head.vocab_size))
    letters = ["" if n == blank else letter for n, letter in enumerate(written)]
    silent = [n for n, letter in enumerate(letters) if n == blank or letter.isspace()]
    search: dict[str, Any] = {"num_beams": num_beams, "length_bonus": length_bonus}
    if language_model is not None:
        search |= {"scorer": _word_scorer(language_model, letters, num_beams)}
    seconds = pretrained.config.samples_per_frame / features.sampling_rate
    chunks = chunk_log_probs(pretrained, stream, features, cut, progress)
    labels: list[int] = []
    segments: list[dict[str, Any]] = []
    begin, last = 0, blank
    for log_probs in stretches(chunks, silent):
        path, own, score = log_probs.argmax(axis=1), best_path(log_probs, blank=blank), None
        if num_beams != 1 or length_bonus:
            own, score = prefix_beams(log_probs, blank=blank, **search)[0]
        # A label that continues beyond a cut counts once.
        again = int(bool(own) and last != blank and own[0] == path[0] == last)
        if timestamps != "none" and len(own) > again:
            times = times_of(log_probs, own, blank, seconds, begin)[again:]
            segments.append(_segment(tokenizer, own[again:], times, score, timestamps))
        begin, last = begin + len(log_probs), path[-1]
        labels += own[again:]
    duration = stream.length / features.sampling_rate
    result = {"text": tokenizer.decode(labels).strip(), "language": None, "duration": duration}
    return result if timestamps == "none" else result | {"segments": segments}


def _word_scorer(model: LanguageModel, letters: Sequence[str], num_beams: int) -> WordScorer:
    """Returns the scorer of the words of labels."""
    if num_beams < 2:
        raise ConfigError(
            f"num_beams = {num_beams}: must be at least 2 for a language model to choose from: try "
            "20"
        )
    separators = [label for label, letter in enumerate(letters) if letter.isspace()]
    if len(separators) != 1:
        raise ConfigError(
            f"language_model: scores words, and the tokenizer has {len(separators)} labels between "
            "words: must have one, such as word_delimiter_token in tokenizer_config.json"
        )
    return model.scorer(letters, separators[0])


def stretches(chunks: Iterable[np.ndarray], silent: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the scores of frames `[T, V]` from one pause to another, at least one frame.

    Each new chunk ends a stretch in the middle of the longest pause among the last half of the
    frames before it, or at their end if there is none. The classes of a pause are `silent`: the
    blank, and the separator of words.
    """
    held = None
    for chunk in chunks:
        if held is None or not len(chunk):
            held = chunk if held is None else held
            continue
        cut = _pause(np.isin(held.argmax(axis=1), silent))
        if cut:
            yield held[:cut]
        held = np.concatenate([held[cut:], chunk])
    if held is not None and len(held):
        yield held


def _pause(silent: np.ndarray) -> int:
    """Returns the middle of the longest run of True in the last half of a row, or its length."""
    half = len(silent) // 2
    edges = np.flatnonzero(np.diff(np.concatenate([[False], silent[half:], [False]]).astype(int)))
    if not len(edges):
        return len(silent)
    starts, stops = edges[::2], edges[1::2]
    longest = int(np.argmax(stops - starts))
    return half + int(starts[longest] + stops[longest]) // 2


def _segment(
    tokenizer: Tokenizer,
    labels: Sequence[int],
    times: Sequence[tuple[float, float]],
    score: float | None,
    timestamps: Timing,
) -> dict[str, Any]:
    """Returns a stretch as `transcribe` returns it."""
    words = words_of(tokenizer, labels, times)
    start, end = (words[0]["start"], words[-1]["end"]) if words else (times[0][0], times[-1][1])
    text = tokenizer.decode(labels).strip()
    segment = {"start": start, "end": end, "text": text, "tokens": list(labels), "score": score}
    return segment | {"words": words} if timestamps == "words" else segment


def label_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are not None; ConfigError if a CTC head does not have one.

    A language model may be its file or folder.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in _OPTIONS:
            raise ConfigError(
                f"{name} = {given[name]!r}: not an option of a model with a CTC head, which has "
                f"{', '.join(_OPTIONS)}: leave it out"
            )
    model = given.get("language_model")
    if model is not None and not isinstance(model, LanguageModel):
        given["language_model"] = read_language_model(model)
    return given


def times_of(
    log_probs: np.ndarray, labels: Sequence[int], blank: int, seconds: float, begin: int = 0
) -> list[tuple[float, float]]:
    """Returns the start and end of each label, in seconds; a frame lasts `seconds`.

    `begin` is the number of frames of the sound before those of the scores `[T, V]`.
    """
    frames = np.array(align(log_probs, labels, blank=blank)) + begin
    return (frames * seconds).round(3).tolist()


def words_of(
    tokenizer: Tokenizer, labels: Sequence[int], times: Sequence[tuple[float, float]]
) -> list[dict[str, Any]]:
    """Returns "word", "start" and "end" of each word of labels, between which there are blanks."""
    groups: list[list[int]] = [[]]
    for place, label in enumerate(labels):
        if tokenizer.decode([label]).isspace():
            groups.append([])
        else:
            groups[-1].append(place)
    words = [(tokenizer.decode([labels[n] for n in places]), places) for places in groups if places]
    return timed_words(words, times)
