"""Sources of sentences with a tag for each word."""

import abc
import io
import keyword
import os
import reprlib
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from jaxformer.checks import at_least, check_fields, check_types, optional
from jaxformer.data.files.find import ending_of, is_folder
from jaxformer.data.files.lines import Malformed, map_or_report, text_lines
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import check_width, read_records
from jaxformer.data.text.sources import StandardLibrary
from jaxformer.errors import DataError
from jaxformer.io.paths import any_path


class Word(NamedTuple):
    """One line of a column file."""

    where: str
    """ "file:line", for messages."""
    fields: list[str]
    """The fields between blanks: the word, ..., its tag."""


class TaggedWord(NamedTuple):
    """One word."""

    text: str
    """The word, with a preceding blank if the text has one."""
    tag: str
    where: str
    """Its place ("file:line"), for messages."""


class Sentence(NamedTuple):
    """The words of a sentence."""

    name: str
    """Determines its side of the validation split."""
    words: list[TaggedWord]

    @classmethod
    def of(
        cls, number: int, words: Sequence[str], tags: Sequence[str], places: Sequence[str]
    ) -> "Sentence":
        """Returns the sentence with a number in its source, with a blank between its words."""
        spaced = [f" {word}" if place else word for place, word in enumerate(words)]
        return cls(f"{number} {' '.join(words)}", list(map(TaggedWord, spaced, tags, places)))


@dataclass(frozen=True)
class TagSource(abc.ABC):
    """A source of tagged sentences; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def sentences(self, malformed: Malformed | None = None) -> Iterator[Sentence]:
        """Yields every sentence, in the same order each time.

        Args:
            malformed: Receives a message for each sentence that cannot be used, which is left out;
                None: such a sentence is an error.

        Raises:
            DataError: The sentences are missing or cannot be read.
        """


def is_table(path: str) -> bool:
    """Whether a path is a table with lists of words and of tags, or a folder of such tables."""
    file = any_path(path, "path")
    return is_folder(file) or ending_of(file) in (".arrow", ".json", ".jsonl", ".parquet")


def is_conllu(path: str) -> bool:
    """Whether the first word of a file has the columns of CoNLL-U."""
    if is_table(path):
        return False
    lines = (line.rstrip("\r\n") for line in text_lines(any_path(path, "path")))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    columns = first.split("\t")
    number = columns[0].replace("-", "").replace(".", "")
    return len(columns) == 10 and number.isdecimal()


def read_columns(
    path: str | os.PathLike, malformed: Malformed | None = None
) -> Iterator[list[Word]]:
    """Yields the sentences of a column file as CoNLL's shared tasks distribute them.

    A line has the fields of a word between blanks or tabs; an empty line ends a sentence. Lines
    that begin with -DOCSTART- are left out. A sentence in which a line's number of fields differs
    from the first line's is reported to `malformed` and left out; without it, it is an error.
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


@dataclass(frozen=True)
class ColumnFile(TagSource):
    """A file with a word and its tag on each line, and an empty line after each sentence.

    References:
        Tjong Kim Sang & De Meulder 2003, the CoNLL-2003 shared task,
        https://aclanthology.org/W03-0419
    """

    path: str
    """The file."""

    word: int = 0
    """The column of the words, counted from 0; -1 is the last."""

    tag: int = -1
    """The column of the tags."""

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether this source reads a path that is given without a source's name."""
        return not (is_table(path) or is_conllu(path))

    def sentences(self, malformed=None):
        for number, words in enumerate(read_columns(self.path, malformed), start=1):
            texts = [self._field(word, self.word) for word in words]
            tags = [self._field(word, self.tag) for word in words]
            if (self.word - self.tag) % len(words[0].fields) == 0:
                raise DataError(
                    f"{words[0].where}: word={self.word} and tag={self.tag} are the same column "
                    f"of {len(words[0].fields)}"
                )
            yield Sentence.of(number, texts, tags, [word.where for word in words])

    def _field(self, word: Word, column: int) -> str:
        if not -len(word.fields) <= column < len(word.fields):
            raise DataError(
                f"{word.where}: no column {column}; there are {len(word.fields)}, from 0: "
                f"{' | '.join(word.fields)}"
            )
        return word.fields[column]


@dataclass(frozen=True)
class TagTable(TagSource):
    """A table with a sentence in each row, as in data sets on the Hugging Face hub."""

    path: str
    """The table: .parquet, .jsonl, a data set saved to disk, ..."""

    words: str = "tokens"
    """The column of the words, a list of strings in each row."""

    tags: str = "ner_tags"
    """The column of the tags, a list of strings or numbers of the same length."""

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether this source reads a path that is given without a source's name."""
        return is_table(path)

    def sentences(self, malformed=None):
        columns = self.words, self.tags
        records = enumerate(read_records(self.path, columns=columns, malformed=malformed), start=1)
        found = map_or_report(self._sentence, records, malformed)
        yield from (sentence for sentence in found if sentence.words)

    def _sentence(self, numbered: tuple[int, Record]) -> Sentence:
        number, record = numbered
        words = _items(record, self.words, str)
        tags = _items(record, self.tags, str | int)
        if len(words) != len(tags):
            raise DataError(
                f"{record.where}: {len(words)} words in {self.words!r} and {len(tags)} tags in "
                f"{self.tags!r}: must be equally many"
            )
        return Sentence.of(number, words, list(map(str, tags)), [record.where] * len(words))


def _items(record: Record, column: str, kind: type) -> list:
    """Returns the list in a column."""
    items = record.value(column)
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        raise DataError(
            f"{record.where}: column {column!r} holds {reprlib.repr(items)}: must be a list with "
            f"{'a string' if kind is str else 'a string or a number'} for each word"
        )
    return items


@dataclass(frozen=True)
class PythonTokens(TagSource):
    """The standard library's modules, each word tagged with the class of its Python token.

    The tags are "comment", "keyword", "name", "number", "operator" and "string", as the library's
    own `tokenize` and `keyword` modules classify them. Each word of a comment or a string is tagged
    separately, so "for" may be a keyword or a word of a docstring. Each module is entirely on one
    side of the validation split.
    """

    max_bytes: int | None = 2_000_000
    """The maximum number of bytes; stops before the module that would exceed it; None: all 12
    MB."""

    sentence_words: int = 64
    """The minimum number of words of a sentence; it ends with the line of code that reaches it."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, max_bytes=optional(at_least(1)), sentence_words=at_least(1))

    def sentences(self, malformed=None):
        for document in StandardLibrary(self.max_bytes).documents():
            if document.name.endswith(".py"):
                yield from self._module(document.name, document.text)

    def _module(self, name: str, text: str) -> Iterator[Sentence]:
        words: list[TaggedWord] = []
        for _, line in groupby(_words(name, text), key=lambda numbered: numbered[0]):
            words += [word for _, word in line]
            if len(words) >= self.sentence_words:
                yield Sentence(name, words)
                words = []
        if words:
            yield Sentence(name, words)


_CLASSES = {
    tokenize.COMMENT: "comment",
    tokenize.NAME: "name",
    tokenize.NUMBER: "number",
    tokenize.OP: "operator",
    tokenize.STRING: "string",
}
# From Python 3.12 on, f-strings are several tokens.
_CLASSES |= {
    getattr(tokenize, name): "string"
    for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
    if hasattr(tokenize, name)
}


def _words(name: str, text: str) -> Iterator[tuple[int, TaggedWord]]:
    """Yields (line, word); a module with a syntax error ends there."""
    end = (1, 0)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            tag = _CLASSES.get(token.type)
            if tag == "name" and keyword.iskeyword(token.string):
                tag = "keyword"
            if tag is not None:
                blank = "" if token.start == end else " "
                where = f"{name}:{token.start[0]}"
                for number, part in enumerate(token.string.split()):
                    before = " " if number else blank
                    yield token.start[0], TaggedWord(before + part, tag, where)
            end = token.end
    except (tokenize.TokenError, SyntaxError):
        return
