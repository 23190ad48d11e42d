"""``jaxformer lab speech``: draws how a speech model processes a sound."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxformer.checks import NOT_NEGATIVE, POSITIVE, check_argument
from jaxformer.cli.options import ModelChoice
from jaxformer.data.sound import read_sound
from jaxformer.errors import ArgumentError
from jaxformer.generation.inputs import reads_sound
from jaxformer.io.files import ordinary_file
from jaxformer.lab.speech.report import SpeechReport, sampling_rate_of
from jaxformer.lab.speech.sound import Sound
from jaxformer.pretrained.auto import load

MOST_SECONDS = 30.0

SoundFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, kw_only=True)
class Speech(ModelChoice):
    """Draws how a speech model processes a sound.

    Writes a page with the spectrogram, the times of the words, and attention over time. For Whisper
    also cross-attention with the path of dynamic time warping; for a CTC head (wav2vec 2.0, HuBERT)
    the lattice of frames and tokens with the most likely path; for a classifier (AST) the most
    likely classes.
    """

    file: SoundFile
    """The sound file (.wav, .flac, .ogg, .mp3)."""
    start: float = 0.0
    """Start of the shown part in seconds."""
    seconds: float = 10.0
    """Length of the shown part in seconds, at most 30."""
    text: str | None = None
    """The text to align (default: the model's transcript)."""
    language: str | None = None
    """The language for Whisper, en or english (default: detect it)."""
    layers: tuple[int, ...] | None = None
    """The layers whose attention to show, from 0 (default: all)."""
    heads: tuple[int, ...] | None = None
    """The heads to show, from 0 (default: all)."""
    out: Path = Path("runs/lab-speech")
    """The output folder for speech.html, attention.html and the figures."""


def speech(options: Speech) -> None:
    """Writes the page of a model and a sound."""
    check_argument("--start", options.start, NOT_NEGATIVE.allows(options.start), "at least 0")
    allowed = POSITIVE.allows(options.seconds) and options.seconds <= MOST_SECONDS
    check_argument("--seconds", options.seconds, allowed, f"above 0 and at most {MOST_SECONDS:g}")
    ordinary_file(options.file)
    model = load(options.folder, **options.how)
    if options.language is not None and not reads_sound(model):
        raise ArgumentError("--language: must be left out, since the model is not a Whisper")
    sound = _part(options, sampling_rate_of(model))
    chosen = {name: getattr(options, name) for name in ("text", "language", "layers", "heads")}
    page = SpeechReport(options.out, model, sound, **chosen).write()
    pictures = len(list(options.out.glob("*.png")))
    print(f"written: {page}, and {pictures} figures next to it")


def _part(options: Speech, rate: int) -> Sound:
    """Reads the shown part of the file."""
    waveform = read_sound(options.file, rate)
    first = round(options.start * rate)
    if first >= len(waveform):
        raise ArgumentError(
            f"--start {options.start:g}: must be less than {len(waveform) / rate:,.2f}, the length "
            f"of {options.file} in seconds"
        )
    part = waveform[first : first + round(options.seconds * rate)]
    where = f" from {options.start:g} s" if options.start else ""
    return Sound(f"{options.file.name}{where}", part, rate)
