"""Tables of clips, each with a text or a label."""

import abc
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxformer.data.bad_rows import read_rows
from jaxformer.data.files.record import EmbeddedFile, Record
from jaxformer.data.files.text_columns import recognised
from jaxformer.data.rows import TaskData
from jaxformer.data.sound import sound_length
from jaxformer.data.tasks.images.sources import NamedImages, file_of
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
"""The columns with what is said."""


class Clip(NamedTuple):
    """One row of the table."""

    where: str
    """ "file:line", for messages."""
    file: AnyPath | EmbeddedFile
    name: str
    text: str
    """What is said, or the label."""
    samples: int
    """At the sampling rate of the model."""


@dataclass(frozen=True)
class ClipTable(TaskData[Clip]):
    """Rows of a table with a sound each; there is a subclass for each use of them."""

    train: str = "clips.csv"
    """The training table: .csv, .tsv, .jsonl or .parquet, with a column of sounds or their paths,
    which may be relative to its folder, and a column of what belongs to them."""

    validation: str | None = None
    """The table for validation; None holds out a share of the training rows."""

    audio: str | None = None
    """The column of the paths, or of the sounds themselves, as `datasets` keeps them in Parquet;
    None: recognised by its name ("audio", "file", "path", ...)."""

    other: ClassVar[tuple[str, tuple[tuple[str], ...]]] = ("text", SPOKEN_COLUMNS)
    """The field that names the other column, and the names by which it is recognised."""

    longer: ClassVar[str] = "data.max_seconds = {:g}: cut the clip, or set a larger one"
    """What a clip that is too long exceeds, and what to do."""

    @property
    @abc.abstractmethod
    def sampling_rate(self) -> int:
        """Samples per second that the model reads."""

    @property
    @abc.abstractmethod
    def max_seconds(self) -> float:
        """The longest clip that is read whole."""

    @abc.abstractmethod
    def value(self, record: Record, column: str) -> str:
        """Returns the text or the label of a row."""

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
        field, choices = self.other
        audio, other = self.audio, getattr(self, field)

        def row(record: Record) -> Clip:
            nonlocal audio, other
            audio = audio or recognised(record, AUDIO_COLUMNS, "--data.audio")[0]
            other = other or recognised(record, choices, f"--data.{field}", (audio,))[0]
            text = self.value(record, other)
            file, name = file_of(record, audio, named)
            samples = sound_length(file, self.sampling_rate)
            self.check_length(record.where, samples)
            return Clip(record.where, file, name, text, samples)

        return read_rows(source, row, self.on_bad_row)
