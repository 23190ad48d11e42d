"""``jaxformer transcribe DIR FILE ...``: writes what is said in sound files."""

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
    """Writes what is said in sound files (.wav, .flac, .ogg, .mp3), with Whisper or a CTC head.

    Whisper reads sounds of any length in windows of 30 seconds, which begin where the last segment
    ends, or with --batch-size in chunks that overlap, many at once. A CTC head (wav2vec 2.0,
    HuBERT) reads chunks, and has the options --timestamps, --beams, --length-bonus and
    --language-model too.
    """

    folder: ModelDir
    """The folder of a Hugging Face checkpoint, or its hub name, org/name or org/name@revision."""
    files: Files
    """The sound files."""
    batch_size: int | None = None
    """The chunks that are read at once (None: 1, or for Whisper windows one after another)."""
    chunk_length_s: float | None = None
    """The seconds of a chunk (None: 30)."""
    stride_length_s: float | None = None
    """The seconds at each end of a chunk that its neighbour reads too (None: a sixth of it)."""
    language: str | None = None
    """The language that is spoken, en or english (None: it is detected)."""
    task: Literal["transcribe", "translate"] | None = None
    """Translate into English, or not (None: what generation_config.json recommends)."""
    prompt: str | None = None
    """A text before what is said, such as names in their spelling."""
    timestamps: Timing = "segments"
    """The times to show and to write: none, those of segments, or those of words too."""
    beams: int = 1
    """Number of beams; 1 is greedy."""
    length_bonus: float = 0.0
    """What beams of a model with a CTC head add to the log-probability for each character."""
    language_model: Path | None = None
    """What scores the words of these beams: a file that KenLM reads (.arpa, .bin), or the folder of
    a Wav2Vec2ProcessorWithLM.
    """
    alpha: float | None = None
    """The weight of the language model (None: that of its folder, or 0.5)."""
    beta: float | None = None
    """What the language model adds for each word (None: that of its folder, or 1.5)."""
    temperature: tuple[float, ...] = api.TEMPERATURES
    """The temperatures at which a window is written, one after another, until its text passes the
    thresholds.
    """
    compression_ratio_threshold: float | None = 1.35
    """A text that zlib compresses by more, because it repeats itself, is written again."""
    logprob_threshold: float | None = -1.0
    """So is one whose tokens have a lower mean log-probability."""
    no_speech_threshold: float | None = 0.6
    """A window with such a text is left out if nobody speaks with a higher probability."""
    condition_on_prev_tokens: bool = False
    """Tell each window the text before it."""
    max_new_tokens: int | None = None
    """Maximum number of tokens of a window (None: as many as the model has positions for)."""
    seed: int = 0
    """Seed of sampling, at temperatures above 0."""
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
"""Options that change nothing for a model with a CTC head."""


def transcribe(wanted: Transcribe) -> None:
    """Prints or writes transcripts."""
    if not wanted.files:
        raise ArgumentError("give sound files: jaxformer transcribe DIR talk.flac ...")
    output = None if wanted.output is None else any_path(wanted.output, "--output")
    if output is not None:
        _check_output(output, wanted)
    language_model = _language_model(wanted)
    for file in wanted.files:
        sound_length(file, 1)  # a file that cannot be opened is named before any work
    options = {"dtype": wanted.dtype, "architecture": wanted.architecture}
    model = with_stored_compute_dtype(load(wanted.folder, **options))
    options = {name: getattr(wanted, name) for name in _SAME} | {"num_beams": wanted.beams}
    if writes_labels(model):
        options = {name: x for name, x in options.items() if name not in _OF_WHISPER}
    options |= {"length_bonus": wanted.length_bonus} if wanted.length_bonus else {}
    options |= {"language_model": language_model}
    found: list[dict[str, Any]] = []
    try:
        for file in wanted.files:
            with _minutes(file) as progress:
                transcript = api.transcribe(model, file, progress=progress, **options)
            found.append({"file": file, **transcript})
            if output is None:
                _show(found[-1], wanted.timestamps, several=len(wanted.files) > 1)
    finally:
        if output is not None and found:
            _write(output, found)


def _language_model(wanted: Transcribe) -> LanguageModel | None:
    """Reads the language model, if there is one."""
    weights = {"alpha": wanted.alpha, "beta": wanted.beta}
    if wanted.language_model is not None:
        return read_language_model(wanted.language_model, **weights)
    for name, value in weights.items():
        if value is not None:
            raise ConfigError(
                f"--{name} {value}: weighs a language model: give it by --language-model"
            )
    return None


def _check_output(output: Any, wanted: Transcribe) -> None:
    """Raises ConfigError if the output cannot hold the transcripts."""
    check_output(output, "--output", (*FORMATS, _LINES))
    ending = output.suffix.lower()
    if ending != _LINES and len(wanted.files) > 1:
        raise ConfigError(
            f"--output {output}: holds one transcript, and there are {len(wanted.files)} files: "
            f"give a file that ends with {_LINES}"
        )
    if ending in TIMED and wanted.timestamps == "none":
        raise ConfigError(f"--output {output}: subtitles need --timestamps segments, or words")


@contextmanager
def _minutes(file: str) -> Iterator[Callable[[float, float], None]]:
    """Shows how many minutes of a sound are done, in a terminal."""
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
    """Writes a file atomically, and says so."""
    ending = output.suffix.lower()
    text = json_lines(transcripts) if ending == _LINES else FORMATS[ending](transcripts[0])
    write_text(output, text)
    minutes = sum(each["duration"] for each in transcripts) / 60
    print(f"written to {output}: {minutes:,.1f} minutes of sound")
