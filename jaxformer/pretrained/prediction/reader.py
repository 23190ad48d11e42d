"""The interface of readers, which convert rows to tokens and batches to arrays."""

import abc
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.data.dataset import padded
from jaxformer.data.files.record import TEXT_COLUMNS, Record, table_row
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks.sequences import EncodedText
from jaxformer.errors import DataError
from jaxformer.io.paths import AnyPath, any_path, is_remote
from jaxformer.models.model import Model

Arrays = dict[str, Any]
FILE = "file"
"""The column with the path of a file."""


class Words(NamedTuple):
    """A text split into words, and its tokens."""

    tokens: EncodedText
    first: np.ndarray
    """int32 [words], the first token of each word; -1 if it was truncated or has no token."""
    spans: list[tuple[int, int]]
    """The start and end of each word in the text."""


class Window(NamedTuple):
    """A question and a part of its context, in one row."""

    tokens: EncodedText
    characters: np.ndarray
    """int32 [tokens, 2], the start and end in the context of each token's word; -1 for tokens
    outside the context.
    """


class Reader(abc.ABC):
    """Reads the inputs of a model.

    Attributes:
        max_length: The maximum number of tokens of a row; longer rows are truncated.
        chunk: Number of batches to read at a time, so that rows of similar length share a batch.
        unit: The unit of `max_length`, for messages.
        columns: The columns, or pairs of columns, that are recognised by name.
        head: The name of the head to predict with, or None.
    """

    max_length: int
    chunk = 16
    unit = "tokens"
    columns: Sequence[tuple[str, ...]] = TEXT_COLUMNS
    head: str | None = None

    def records(self, path: Path, header: bool) -> Iterator[Record]:
        """Yields the rows of an input, by default of a table."""
        return read_records(path, header)

    @abc.abstractmethod
    def encode(self, rows: Sequence[tuple[str, ...]]) -> Sequence[Any]:
        """Returns encoded rows, each with `ids` and `cut`; see `EncodedText`."""

    @abc.abstractmethod
    def arrays(self, rows: Sequence[Any], length: int) -> Arrays:
        """Returns the model's inputs for encoded rows, [rows, length]."""

    def scores(self, model: Model, arrays: Arrays) -> jax.Array:
        """Returns the head's scores, float32: [B, labels], [B, T, labels] or [B, 2, T]."""
        return model.scores(arrays)[self.head]

    @abc.abstractmethod
    def states(self, model: Model, arrays: Arrays) -> tuple[jax.Array, jax.Array]:
        """Returns the hidden states [B, T, D], and a mask of the real tokens, bool [B, T]."""


class TextReader(Reader):
    """Reads texts, and pairs of texts.

    Attributes:
        pads_left: Whether padding comes before the tokens.
    """

    pads_left = False

    @abc.abstractmethod
    def encode_words(self, rows: Sequence[Sequence[str]]) -> list[Words]:
        """Tokenizes texts that are split into words; spans are positions in " ".join(words)."""

    @abc.abstractmethod
    def split_words(self, texts: Sequence[str]) -> list[Words]:
        """Splits texts into words and tokenizes them."""

    @abc.abstractmethod
    def windows(self, where: str, question: str, context: str) -> list[Window]:
        """Returns the rows of a question: several if the context is too long for one."""

    def stacked(self, columns: Sequence[np.ndarray], length: int, fill: int) -> np.ndarray:
        """Stacks arrays [tokens] to [rows, length], padded on the model's side."""
        if self.pads_left:
            return np.stack([padded(column[::-1], length, fill)[::-1] for column in columns])
        return np.stack([padded(column, length, fill) for column in columns])

    def token_slice(self, count: int, length: int) -> slice:
        """Returns the slice of `count` tokens in a row padded to `length`."""
        start = length - count if self.pads_left else 0
        return slice(start, start + count)


class FileReader(Reader):
    """Reads the files in a folder or in a column of a table."""

    kind = "files"
    """The contents of the files, for messages."""
    found_in: Callable[[AnyPath], Sequence[str]]
    """Lists the files of a folder."""
    _folder: AnyPath | None = None

    def records(self, path, header):
        """Yields a row with the path of each file in a folder, or the rows of a table."""
        if not path.is_dir():
            self._folder = path.parent
            return read_records(path, header)
        names = self.found_in(path)
        if not names:
            raise DataError(f"{path} holds no {self.kind}")
        rows = ({FILE: str(path / name)} for name in names)
        return (table_row(path, number, row) for number, row in enumerate(rows, start=1))

    def file(self, name: str) -> AnyPath:
        """Returns the path of a file; relative paths start at the table's folder."""
        file = any_path(os.path.expanduser(name), self.kind)
        if self._folder is None or is_remote(file):
            return file
        return beside if (beside := self._folder / name).is_file() else file


def joined_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the start and end of each word in " ".join(words)."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]
