"""Readers of labelled files: tables with named columns, columns of words, parallel text."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from jaxformer.data.files.lines import text_lines
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import check_width, read_records
from jaxformer.errors import DataError

__all__ = ["Record", "Word", "read_columns", "read_parallel", "read_records"]


class Word(NamedTuple):
    """One line of a column file."""

    where: str
    """ "file:line", for messages."""
    fields: list[str]
    """The fields between blanks: the word, ..., its tag."""


def read_columns(path: str | os.PathLike) -> Iterator[list[Word]]:
    """Yields the sentences of a column file as CoNLL's shared tasks distribute them.

    A line has a word's fields, between blanks or tabs; an empty line ends a sentence. Lines that
    begin with -DOCSTART- are left out.

    Raises:
        DataError: The file cannot be read, or a line has other than the first one's number of
            fields; names the file and the line.
    """
    sentence, width = [], None
    for number, line in enumerate(text_lines(path), start=1):
        fields = line.split()
        if fields and not line.startswith("-DOCSTART-"):
            width = width or len(fields)
            check_width(f"{path}:{number}", fields, width)
            sentence.append(Word(f"{path}:{number}", fields))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def read_parallel(source: str | os.PathLike, target: str | os.PathLike) -> list[tuple[str, str]]:
    """Returns the pairs of lines of two files, one translating the other.

    Raises:
        DataError: A file cannot be read, or they have different numbers of lines.
    """
    sides = [[line.rstrip("\r\n") for line in text_lines(path)] for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source} has {len(sides[0])} lines and {target} has {len(sides[1])}: each line of "
            "one must translate the same line of the other"
        )
    return list(zip(*sides, strict=True))
