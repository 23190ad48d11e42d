"""What is said in a sound, from a model with a CTC head (wav2vec 2.0, HuBERT)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import ConfigError
from jaxformer.generation.speech.ctc import Interval, align, best_path, prefix_beams
from jaxformer.generation.speech.features import waveform_features_of
from jaxformer.generation.speech.frames import check_writes_labels, frame_log_probs
from jaxformer.pretrained.model import Pretrained

Timing = Literal["none", "segments", "words"]
_OPTIONS = ("num_beams", "length_bonus")


def transcribe_labels(
    pretrained: Pretrained,
    waveform: np.ndarray,
    *,
    timestamps: Timing = "segments",
    num_beams: int = 1,
    length_bonus: float = 0.0,
    progress: Callable[[float, float], None] | None = None,
) -> dict[str, Any]:
    """Writes what is said in a sound of any length, with a CTC head.

    Args:
        pretrained: The model.
        waveform: float32 `[S]` at the sampling rate of the model.
        timestamps: "segments", "words" or "none".
        num_beams: 1 takes the likeliest label of each frame; more search prefixes.
        length_bonus: What beams add to the log-probability for each label.
        progress: Is called with the seconds that are done, and all seconds.

    Returns:
        What `jaxformer.transcribe` returns; there is one segment, and "language" is None.

    Raises:
        ArgumentError: An argument has an invalid value.
        ConfigError: The model has no CTC head.
        DataError: The sound is shorter than a frame, or the folder has no tokenizer.
    """
    check_writes_labels(pretrained)
    features = waveform_features_of(pretrained)
    tokenizer = pretrained.prompt_encoder.tokenizer
    blank = pretrained.model.heads["ctc"].blank
    log_probs = frame_log_probs(pretrained, waveform, features, progress)
    labels, score = best_path(log_probs, blank=blank), None
    if num_beams != 1 or length_bonus:
        options = {"num_beams": num_beams, "length_bonus": length_bonus}
        labels, score = prefix_beams(log_probs, blank=blank, **options)[0]
    duration = len(waveform) / features.sampling_rate
    text = tokenizer.decode(labels).strip()
    result = {"text": text, "language": None, "duration": duration}
    if timestamps == "none":
        return result
    seconds = pretrained.config.samples_per_frame / features.sampling_rate
    intervals = align(log_probs, labels, blank=blank)
    found = words_of(tokenizer, labels, intervals, seconds)
    start, end = (found[0]["start"], found[-1]["end"]) if found else (0.0, round(duration, 3))
    segment = {"start": start, "end": end, "text": text, "tokens": list(labels), "score": score}
    if timestamps == "words":
        segment["words"] = found
    return result | {"segments": [segment]}


def label_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `transcribe` that a model with a CTC head has.

    Args:
        options: The options; None leaves one out.

    Raises:
        ConfigError: Another option is given.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in _OPTIONS:
            raise ConfigError(
                f"{name} = {given[name]!r}: not an option of a model with a CTC head, which has "
                f"{' and '.join(_OPTIONS)}: leave it out"
            )
    return given


def words_of(
    tokenizer: Tokenizer, labels: Sequence[int], intervals: Sequence[Interval], seconds: float
) -> list[dict[str, Any]]:
    """Returns the words of labels, which blanks between words separate, with their times.

    Args:
        tokenizer: Decodes labels.
        labels: The labels.
        intervals: The frames of each.
        seconds: Seconds per frame.

    Returns:
        "word", and "start" and "end" in seconds, of each word.
    """
    groups: list[list[int]] = [[]]
    for place, label in enumerate(labels):
        if tokenizer.decode([label]).isspace():
            groups.append([])
        else:
            groups[-1].append(place)
    return [
        {
            "word": tokenizer.decode([labels[place] for place in group]),
            "start": round(intervals[group[0]].start * seconds, 3),
            "end": round(intervals[group[-1]].stop * seconds, 3),
        }
        for group in groups
        if group
    ]
