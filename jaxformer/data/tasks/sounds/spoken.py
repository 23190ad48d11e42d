"""Sentences that eSpeak NG speaks, for runs that need no recordings."""

import ctypes
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields, check_types
from jaxformer.data.sound import resampled
from jaxformer.data.tasks.sounds.clips import Clip, Clips
from jaxformer.errors import DataError
from jaxformer.extras import optional_module

VOICES = ("en-us", "en", "en-us+f2", "en+m3", "en-us+f4", "en+m7")
"""The voices of eSpeak NG that speak the training sentences."""
UNSEEN_VOICE = "en-gb-scotland+f3"
"""The voice that speaks for validation alone."""
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
class SpokenSentences(Clips):
    """Random sentences in several voices of eSpeak NG; validation has others, and one more voice.

    A sentence is spoken whenever it is read, always in the same way.
    """

    train: str = "sentences"
    """Unused: the sentences are made up."""

    sentences: int = 4000
    """The training sentences."""

    validation_sentences: int = 200
    """The sentences for validation, of which half have the unseen voice."""

    def __post_init__(self):
        super().__post_init__()
        check_types(self, "data")
        check_fields(self, "data", sentences=at_least(1), validation_sentences=at_least(2))

    def split(self) -> tuple[list[Clip], list[Clip]]:
        """Returns the clips for training and those for validation, without a common sentence."""
        rng = np.random.default_rng(self.split_seed)
        texts: dict[str, None] = {}
        while len(texts) < self.sentences + self.validation_sentences:
            texts[_sentence(rng)] = None
        clips = []
        for number, text in enumerate(texts):
            held_out = number - self.sentences
            voice = UNSEEN_VOICE if held_out >= 0 and held_out % 2 else rng.choice(VOICES)
            spoken = Voice(str(voice), int(rng.integers(150, 190)), int(rng.integers(35, 66)))
            samples = len(_spoken(text, spoken, self.sampling_rate))
            if samples > self.lengths["inputs"]:
                raise DataError(
                    f"{text!r}: {samples / self.sampling_rate:.1f} seconds, more than "
                    f"data.max_seconds = {self.max_seconds:g}: set a larger one"
                )
            where = f"sentence {number}"
            clips.append(Clip(where, spoken, where, self.spelling(text), samples))
        return clips[: self.sentences], clips[self.sentences :]

    def waveform(self, clip):
        return _spoken(clip.text.lower(), clip.file, self.sampling_rate)


def _sentence(rng: np.random.Generator) -> str:
    """Returns a subject, a verb, and things with a number or a colour."""
    subject, verb, thing = (str(rng.choice(part)) for part in (_SUBJECTS, _VERBS, _THINGS))
    more = str(rng.choice((*_NUMBERS, *_COLOURS)))
    return " ".join([subject, verb, more, thing])


def _spoken(text: str, voice: Voice, sampling_rate: int) -> np.ndarray:
    """Returns a sentence as samples, float32 [S]."""
    library, rate, lock = _espeak()
    with lock:
        return resampled(_said(library, text, voice), rate, sampling_rate)


@cache
def _espeak() -> tuple[Any, int, threading.Lock]:
    """Returns eSpeak NG, its sampling rate, and the lock under which it speaks."""
    loader = optional_module("espeakng_loader", "Speaking sentences")
    library = ctypes.CDLL(loader.get_library_path())
    rate = library.espeak_Initialize(_RETRIEVAL, 0, loader.get_data_path().encode(), 0)
    if rate < 1:
        raise DataError("eSpeak NG cannot be started: install espeakng-loader again")
    return library, rate, threading.Lock()


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
