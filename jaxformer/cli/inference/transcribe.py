"""``jaxformer transcribe DIR FILE ...``: transcribes sound files."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxformer.cli.options import ClassChoice, Dtype, ModelDir
from jaxformer.data.sound import sound_length
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.generation.speech import api
from jaxformer.generation.speech.chunks import Timing
from jaxformer.generation.speech.frames import writes_labels
from jaxformer.generation.speech.language_model import LanguageModel, read_language_model
from jaxformer.generation.speech.subtitles import FORMATS, TIMED, json_lines, plain_text, timed_text
from jaxformer.io.files import write_text
from jaxformer.io.paths import any_path
from jaxformer.io.tables import check_output
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.model import with_stored_compute_dtype

Files = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [FILE ...]")]
_LINES = ".jsonl"


@dataclass(frozen=True)
class Transcribe(ClassChoice):
    """Transcribes sound files (.wav, .flac, .ogg, .mp3) with Whisper or a CTC head.

    Whisper reads sounds of any length in windows of 30 seconds, each of which begins where the last
    segment ends, or with --batch-size in batches of overlapping chunks. A CTC head (wav2vec 2.0,
    HuBERT) reads chunks, and supports the options --timestamps, --beams, --length-bonus and
    --language-model.
    """

    folder: ModelDir
    """The folder of a Hugging Face checkpoint, or its hub name, org/name or org/name@revision."""
    files: Files
    """The sound files."""
    batch_size: int | None = None
    """Number of chunks per batch (None: 1, or for Whisper windows one after another)."""
    chunk_length_s: float | None = None
    """Length of a chunk in seconds (None: 30)."""
    stride_length_s: float | None = None
    """Overlap in seconds at each end of a chunk (None: a sixth of the chunk)."""
    language: str | None = None
    """The spoken language, en or english (None: detect it)."""
    task: Literal["transcribe", "translate"] | None = None
    """Transcribe, or translate into English (None: as in generation_config.json)."""
    prompt: str | None = None
    """A text to condition on, such as the spelling of names."""
    timestamps: Timing = "segments"
    """The times to output: none, of segments, or also of words."""
    beams: int = 1
    """Number of beams; 1 is greedy."""
    length_bonus: float = 0.0
    """Bonus per character for the log-probability of beams, for a CTC head."""
    language_model: Path | None = None
    """The language model that scores words of these beams: a KenLM file (.arpa, .bin), or the
    folder of a Wav2Vec2ProcessorWithLM.
    """
    alpha: float | None = None
    """The weight of the language model (None: that of its folder, or 0.5)."""
    beta: float | None = None
    """The bonus of the language model per word (None: that of its folder, or 1.5)."""
    temperature: tuple[float, ...] = api.TEMPERATURES
    """The temperatures to try for a window until its text passes the thresholds."""
    compression_ratio_threshold: float | None = 1.35
    """Decode a window again if zlib compresses its text by more, which indicates repetition."""
    logprob_threshold: float | None = -1.0
    """Decode a window again if the mean log-probability of its tokens is lower."""
    no_speech_threshold: float | None = 0.6
    """Leave out such a window if its probability of containing no speech is higher."""
    condition_on_prev_tokens: bool = False
    """Condition each window on the previous text."""
    max_new_tokens: int | None = None
    """Maximum number of tokens per window (None: the model's number of positions)."""
    seed: int = 0
    """Seed for sampling at temperatures above 0."""
    output: Path | None = None
    """The file to write (None: the screen): .txt, .srt, .vtt or .json for one sound, .jsonl for an
    object per line.
    """
    dtype: Dtype | None = None
    """The dtype of the weights and the computation (None: the dtype that the weights are saved in).
    """


_SAME = (
    "batch_size", "chunk_length_s", "stride_length_s", "language", "task", "prompt", "timestamps",
    "temperature", "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold",
    "condition_on_prev_tokens", "max_new_tokens", "seed",
)  # fmt: skip
"""The options with the same name in `jaxformer.transcribe`."""
_OF_WHISPER = ("max_new_tokens", "seed")
"""Options without an effect for a model with a CTC head."""


def transcribe(options: Transcribe) -> None:
    """Prints or writes transcripts."""
    if not options.files:
        raise ArgumentError("give sound files: jaxformer transcribe DIR talk.flac ...")
    output = None if options.output is None else any_path(options.output, "--output")
    if output is not None:
        _check_output(output, options)
    language_model = _language_model(options)
    for file in options.files:
        sound_length(file, 1)  # reports a file that cannot be opened before any work
    keywords = {"dtype": options.dtype, "architecture": options.architecture}
    model = with_stored_compute_dtype(load(options.folder, **keywords))
    keywords = {name: getattr(options, name) for name in _SAME} | {"num_beams": options.beams}
    if writes_labels(model):
        keywords = {name: x for name, x in keywords.items() if name not in _OF_WHISPER}
    keywords |= {"length_bonus": options.length_bonus} if options.length_bonus else {}
    keywords |= {"language_model": language_model}
    found: list[dict[str, Any]] = []
    try:
        for file in options.files:
            with _minutes(file) as progress:
                transcript = api.transcribe(model, file, progress=progress, **keywords)
            found.append({"file": file, **transcript})
            if output is None:
                _show(found[-1], options.timestamps, several=len(options.files) > 1)
    finally:
        if output is not None and found:
            _write(output, found)


def _language_model(options: Transcribe) -> LanguageModel | None:
    """Reads the language model, if any."""
    weights = {"alpha": options.alpha, "beta": options.beta}
    if options.language_model is not None:
        return read_language_model(options.language_model, **weights)
    for name, value in weights.items():
        if value is not None:
            raise ConfigError(
                f"--{name} {value}: requires a language model: give it by --language-model"
            )
    return None


def _check_output(output: Any, options: Transcribe) -> None:
    """Raises ConfigError if the output format does not support the transcripts."""
    check_output(output, "--output", (*FORMATS, _LINES))
    ending = output.suffix.lower()
    if ending != _LINES and len(options.files) > 1:
        raise ConfigError(
            f"--output {output}: a file for one transcript, but there are {len(options.files)} "
            f"sounds: name a file that ends with {_LINES}"
        )
    if ending in TIMED and options.timestamps == "none":
        raise ConfigError(f"--output {output}: subtitles need --timestamps segments or words")


@contextmanager
def _minutes(file: str) -> Iterator[Callable[[float, float], None]]:
    """Shows progress in minutes, in a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[minutes]}")
    screen = Console(stderr=True)
    off = not sys.stderr.isatty()
    with Progress(*columns, console=screen, transient=True, disable=off) as bar:
        task = bar.add_task(Path(file).name, minutes="")

        def report(done: float, total: float) -> None:
            minutes = f"{done / 60:.1f} of {total / 60:.1f} minutes"
            bar.update(task, completed=done, total=total, minutes=minutes)

        yield report


def _show(transcript: dict[str, Any], timing: Timing, several: bool) -> None:
    if several:
        print(f"{transcript['file']}:")
    text = plain_text(transcript) if timing == "none" else timed_text(transcript)
    print(text, end="", flush=True)


def _write(output: Any, transcripts: list[dict[str, Any]]) -> None:
    """Writes a file atomically, and prints its name."""
    ending = output.suffix.lower()
    text = json_lines(transcripts) if ending == _LINES else FORMATS[ending](transcripts[0])
    write_text(output, text)
    minutes = sum(each["duration"] for each in transcripts) / 60
    print(f"written to {output}: {minutes:,.1f} minutes of sound")
