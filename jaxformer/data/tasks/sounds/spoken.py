"""Sentences that eSpeak NG speaks, for runs that need no recordings."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.data.sound import resampled
from jaxformer.data.tasks.sounds.clips import Clips
from jaxformer.data.tasks.sounds.masked import MaskedSounds
from jaxformer.errors import DataError
from jaxformer.extras import optional_module
from jaxformer.io.files import write_text

VOICES = (
    "en-us", "en-us+f1", "en-us+f2", "en-us+f4", "en-us+m1", "en-us+m3", "en-us+m4", "en-us+m7",
    "en", "en+f2", "en+f3", "en+m2",
)  # fmt: skip
"""The voices of eSpeak NG that speak the training sentences."""
UNSEEN_VOICE = "en-us+f3"
"""The voice that speaks only for validation."""
_SUBJECTS = (
    "the old farmer", "a young doctor", "my little sister", "the tall captain", "her best friend",
    "the quiet teacher", "a hungry dog", "the small rabbit", "our new neighbour", "the clever fox",
)  # fmt: skip
_VERBS = (
    "found", "carried", "painted", "watched", "wanted", "bought", "dropped", "remembered",
    "followed", "counted",
)  # fmt: skip
_NUMBERS = ("one", "two", "three", "four", "five", "seven", "eight", "nine", "ten", "many")
_COLOURS = (
    "red", "green", "yellow", "purple", "white", "black", "golden", "silver", "orange", "brown",
)  # fmt: skip
_THINGS = (
    "apples", "bottles", "candles", "flowers", "ladders", "mirrors", "pillows", "ribbons", "stones",
    "windows",
)  # fmt: skip
_RATE, _PITCH = 1, 3
_RETRIEVAL, _UTF8 = 2, 1


class Voice(NamedTuple):
    """How a sentence is spoken."""

    name: str
    """A voice of eSpeak NG, with a variant: "en-us+f2"."""
    speed: int
    """Words per minute."""
    pitch: int
    """From 0 to 99."""


@dataclass(frozen=True)
class _Spoken:
    """The fields of sentences that are spoken into the folder of the run."""

    plain: ClassVar[type[Any]]
    """The data that read the sentences once they are spoken."""

    train: str = "clips/train.csv"
    """The table that is written, in the folder of the run."""

    validation: str | None = "clips/validation.csv"
    """The table that is written for validation."""

    sentences: int = 2000
    """The training sentences."""

    validation_sentences: int = 100
    """The sentences for validation, half of them in the unseen voice."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", sentences=at_least(1), validation_sentences=at_least(2))

    def prepare(self, folder):
        """Speaks the sentences, unless an earlier start has, and reads them."""
        tables = [Path(folder, name) for name in (self.train, self.validation)]
        if not all(table.exists() for table in tables):
            _speak(self, tables)
        own = {field.name: getattr(self, field.name) for field in fields(self.plain)}
        paths = dict(zip(("train", "validation"), map(str, tables), strict=True))
        return self.plain(**(own | paths)).prepare(folder)


@dataclass(frozen=True)
class SpokenSentences(_Spoken, Clips):
    """Random sentences in several voices of eSpeak NG; validation has other sentences and an
    additional voice.

    They are spoken once, into the folder of the run: eSpeak NG adds noise, so that a sentence is
    never spoken twice in the same way.
    """

    plain: ClassVar[type[Any]] = Clips


@dataclass(frozen=True)
class MaskedSpokenSentences(_Spoken, MaskedSounds):
    """The sounds of `SpokenSentences`, without their texts."""

    plain: ClassVar[type[Any]] = MaskedSounds


def _speak(data: Any, tables: Sequence[Path]) -> None:
    """Writes the sounds, and then the tables."""
    soundfile = optional_module("soundfile", "Writing sound files")
    rng = np.random.default_rng(data.split_seed)
    texts: dict[str, None] = {}
    while len(texts) < data.sentences + data.validation_sentences:
        texts[_sentence(rng)] = None
    lines: tuple[list[str], list[str]] = (["audio,text"], ["audio,text"])
    for number, text in enumerate(texts):
        held_out = number - data.sentences
        voice = UNSEEN_VOICE if held_out >= 0 and held_out % 2 else str(rng.choice(VOICES))
        spoken = Voice(voice, int(rng.integers(145, 195)), int(rng.integers(25, 76)))
        side = int(held_out >= 0)
        file = tables[side].parent / f"{number}.flac"
        file.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(file, say(text, spoken, data.sampling_rate), data.sampling_rate)
        lines[side].append(f"{file.name},{text}")
    for table, own in zip(tables, lines, strict=True):
        write_text(table, "\n".join(own) + "\n")


def _sentence(rng: np.random.Generator) -> str:
    """Returns a subject, a verb, and things with a number or a colour."""
    subject, verb, thing = (str(rng.choice(part)) for part in (_SUBJECTS, _VERBS, _THINGS))
    more = str(rng.choice((*_NUMBERS, *_COLOURS)))
    return " ".join([subject, verb, more, thing])


def say(text: str, voice: Voice, sampling_rate: int) -> np.ndarray:
    """Returns a sentence as samples between -1 and 1, float32 [S]."""
    library, rate = _espeak()
    return np.clip(resampled(_said(library, text, voice), rate, sampling_rate), -1, 1)


@cache
def _espeak() -> tuple[Any, int]:
    """Returns eSpeak NG and its sampling rate."""
    loader = optional_module("espeakng_loader", "Speaking sentences")
    library = ctypes.CDLL(loader.get_library_path())
    rate = library.espeak_Initialize(_RETRIEVAL, 0, loader.get_data_path().encode(), 0)
    if rate < 1:
        raise DataError("eSpeak NG cannot be started: install espeakng-loader again")
    return library, rate


def _said(library: Any, text: str, voice: Voice) -> np.ndarray:
    parts: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def receive(samples, count, events):
        del events
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / 2**15)
        return 0

    library.espeak_SetSynthCallback(receive)
    if library.espeak_SetVoiceByName(voice.name.encode()) != 0:
        raise DataError(f"eSpeak NG has no voice {voice.name!r}: install espeakng-loader again")
    library.espeak_SetParameter(_RATE, voice.speed, 0)
    library.espeak_SetParameter(_PITCH, voice.pitch, 0)
    content = text.encode() + b"\0"
    library.espeak_Synth(content, len(content), 0, 0, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    return np.concatenate(parts)
