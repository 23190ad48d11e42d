"""Readers of labelled files: columns of words, and parallel text."""

import os
import reprlib
from collections.abc import Iterator
from typing import NamedTuple

from jaxformer.data.files.lines import byte_lines, line_text, text_lines
from jaxformer.data.files.malformed import Malformed, map_or_report
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import check_width, read_records
from jaxformer.errors import DataError

__all__ = [
    "ParallelLines", "Record", "Word", "label_of", "read_columns", "read_parallel", "read_records",
]  # fmt: skip


class Word(NamedTuple):
    """One line of a column file."""

    where: str
    """ "file:line", for messages."""
    fields: list[str]
    """The fields between blanks: the word, ..., its tag."""


class ParallelLines(NamedTuple):
    """A line of each of two files."""

    texts: tuple[str, str]
    places: tuple[str, str]
    """The "file:line" of each, for messages."""

    @property
    def where(self) -> str:
        """The position of the first line, for messages."""
        return self.places[0]


def read_columns(
    path: str | os.PathLike, malformed: Malformed | None = None
) -> Iterator[list[Word]]:
    """Yields the sentences of a column file as CoNLL's shared tasks distribute them.

    A line has the fields of a word between blanks or tabs; an empty line ends a sentence. Lines
    that begin with -DOCSTART- are left out.

    Args:
        path: The file.
        malformed: Receives a message for each sentence in which a line's number of fields differs
            from the first line's; the sentence is left out. None: such a line is an error.

    Raises:
        DataError: The file cannot be read, or such a line is an error; names the file and the line.
    """
    width = None

    def checked(sentence: list[Word]) -> list[Word]:
        nonlocal width
        width = width or len(sentence[0].fields)
        for word in sentence:
            check_width(word.where, word.fields, width)
        return sentence

    yield from map_or_report(checked, _sentences(path), malformed)


def _sentences(path: str | os.PathLike) -> Iterator[list[Word]]:
    sentence = []
    for number, line in enumerate(text_lines(path), start=1):
        fields = line.split()
        if fields and not line.startswith("-DOCSTART-"):
            sentence.append(Word(f"{path}:{number}", fields))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def read_parallel(
    source: str | os.PathLike, target: str | os.PathLike, malformed: Malformed | None = None
) -> Iterator[ParallelLines]:
    """Returns the pairs of lines of two files, one of which translates the other.

    Args:
        source: A file.
        target: The other.
        malformed: Receives a message for each pair with an undecodable line, which is skipped;
            None: such a line is an error.

    Raises:
        DataError: A file cannot be read, they have different numbers of lines, or such a line is an
            error.
    """
    files = source, target
    sides = [list(byte_lines(path)) for path in files]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source} has {len(sides[0])} lines and {target} has {len(sides[1])}: each line of "
            "one must translate the same line of the other"
        )

    def pair(numbered: tuple[int, tuple[bytes, bytes]]) -> ParallelLines:
        number, lines = numbered
        texts = (line_text(*side, number) for side in zip(lines, files, strict=True))
        places = (f"{path}:{number}" for path in files)
        return ParallelLines(tuple(text.rstrip("\r\n") for text in texts), tuple(places))

    return map_or_report(pair, enumerate(zip(*sides, strict=True), start=1), malformed)


def label_of(record: Record, column: str) -> str:
    """Returns the label in a column, as a string.

    Raises:
        DataError: There is none; names the file and the line.
    """
    value = record.value(column)
    missing = value is None or value != value or not str(value).strip()  # NaN differs from itself
    if missing or not isinstance(value, str | int | float):
        shown = reprlib.repr(value)
        raise DataError(f"{record.where}: no label: column {column!r} holds {shown}; give one")
    return str(value)
