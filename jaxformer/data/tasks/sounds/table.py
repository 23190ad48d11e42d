"""Tables of clips: the rows, and the common base of sound data."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jaxformer.data.bad_rows import read_rows
from jaxformer.data.buckets import SizedExamples
from jaxformer.data.dataset import Dataset
from jaxformer.data.files.record import EmbeddedFile, Record, recognised
from jaxformer.data.rows import TaskData
from jaxformer.data.sound import read_sound, sound_length
from jaxformer.data.tasks.images.pixels import keep_preprocessor
from jaxformer.data.tasks.images.sources import NamedImages, file_of
from jaxformer.data.tasks.sounds.features import SoundForm
from jaxformer.errors import DataError
from jaxformer.io.paths import AnyPath, any_path

AUDIO_COLUMNS = (
    ("audio",), ("file",), ("path",), ("file_name",), ("filename",), ("audio_path",), ("wav",),
    ("sound",),
)  # fmt: skip
"""The columns with the paths of sounds, or with the sounds themselves."""
SPOKEN_COLUMNS = (
    ("text",), ("sentence",), ("transcription",), ("transcript",), ("normalized_text",),
)  # fmt: skip
"""The columns with the transcripts."""


class Clip(NamedTuple):
    """One sound."""

    where: str
    """ "file:line", for messages."""
    file: AnyPath | EmbeddedFile
    name: str
    text: str
    """The transcript or the label; empty for a sound alone."""
    samples: int
    """At the sampling rate of the model."""


@dataclass(frozen=True)
class ClipTable(TaskData[Clip]):
    """Rows of a table with a sound each; there is a subclass for each use of them."""

    train: str = "clips.csv"
    """The training table: .csv, .tsv, .jsonl or .parquet, with a column of sounds or their paths,
    which may be relative to its folder, and a column of their texts or labels."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    audio: str | None = None
    """The column of the paths, or of the sounds themselves, as `datasets` keeps them in Parquet;
    None: recognised by its name ("audio", "file", "path", ...)."""

    other: ClassVar[tuple[str, tuple[tuple[str], ...]] | None] = ("text", SPOKEN_COLUMNS)
    """The field that names the other column, and the names by which it is recognised; None for a
    table without another column."""

    longer: ClassVar[str] = "data.max_seconds = {:g}: cut the clip, or set a larger one"
    """The limit of a clip's length and a remedy, for messages."""

    @property
    @abc.abstractmethod
    def form(self) -> SoundForm | None:
        """How sounds are read; None: as in the checkpoint."""

    @property
    def sounds_as(self) -> str | None:
        """The array of a row's sound; None: the checkpoint determines it."""
        return None if self.form is None else self.form.array

    @property
    def sampling_rate(self) -> int:
        """Samples per second that the model reads."""
        return self.form.sampling_rate

    @property
    @abc.abstractmethod
    def max_seconds(self) -> float:
        """The longest clip that is read whole."""

    def value(self, record: Record, column: str) -> str:
        """Returns the text or the label of a row."""
        return record.text(column)

    @abc.abstractmethod
    def described(self, train: Dataset) -> list[tuple[str, str]]:
        """Returns the lines of the report about the sounds: (name, value)."""

    def check_length(self, where: str, samples: int) -> None:
        """Raises DataError for a clip whose length cannot be used."""
        if samples > round(self.max_seconds * self.sampling_rate):
            raise DataError(
                f"{where}: {samples / self.sampling_rate:,.1f} seconds, more than "
                f"{self.longer.format(self.max_seconds)}"
            )

    def side_of(self, row: Clip) -> str:
        return row.text

    def texts(self, row: Clip) -> tuple[str, ...]:
        return (row.text,)

    def read(self, source: str) -> list[Clip]:
        """Returns the rows of a table; a sound that cannot be opened is a bad row."""
        table = any_path(source, "data.train")
        named = NamedImages(table.parent)
        field, choices = self.other or (None, ())
        audio, other = self.audio, field and getattr(self, field)

        def row(record: Record) -> Clip:
            nonlocal audio, other
            audio = audio or recognised(record, AUDIO_COLUMNS, "--data.audio")[0]
            if field:
                other = other or recognised(record, choices, f"--data.{field}", (audio,))[0]
            text = self.value(record, other) if field else ""
            return self.clip(record.where, *file_of(record, audio, named), text)

        return read_rows(source, row, self.on_bad_row)

    def clip(self, where: str, file: AnyPath | EmbeddedFile, name: str, text: str = "") -> Clip:
        """Returns a sound whose length can be used."""
        samples = sound_length(file, self.sampling_rate)
        self.check_length(where, samples)
        return Clip(where, file, name, text, samples)

    def prepare(self, folder):
        """Finds the sounds, and saves the sound settings for the exports of the run."""
        found = super().prepare(folder)
        keep_preprocessor(folder, self.form.preprocessor())
        return replace(found, summary=(*found.sides(), *self.described(found.train)))


class CutClips(SizedExamples):
    """Clips, each of which is read on access, and cut to the maximum length.

    Of a longer clip, a random part or the beginning is read.
    """

    def __init__(self, config: Any, clips: Sequence[Clip], longest: int, at_random: bool = True):
        self.clips = clips
        self.sizes = np.array([min(clip.samples, longest) for clip in clips])
        self._config, self._at_random = config, at_random

    def waveform(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """Returns the samples of a clip."""
        size = int(self.sizes[index])
        waveform = read_sound(self.clips[index].file, self._config.sampling_rate)
        spare = max(len(waveform) - size, 0)
        start = int(rng.integers(spare + 1)) if self._at_random else 0
        return waveform[start : start + size]
