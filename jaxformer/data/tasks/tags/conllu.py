"""Universal Dependencies: sentences in the CoNLL-U format, with a tag for each word."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from jaxformer.data.files.lines import map_or_report, text_lines
from jaxformer.data.tasks.tags.sources import Sentence, TaggedWord, TagSource, is_conllu
from jaxformer.errors import DataError, did_you_mean

_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_RANGE = re.compile(r"(\d+)-(\d+)")
_EMPTY_NODE = re.compile(r"\d+\.\d+")
_NONE = "_"
_Block = tuple[str | None, list[tuple[str, str]]]
"""The sent_id of a sentence, and the position and the text of each line."""


@dataclass(frozen=True)
class ConllU(TagSource):
    """A CoNLL-U file of Universal Dependencies, with the part of speech of each word.

    The words are syntactic words: "1-2 du" gives the words "de" and "le", each with its tag. Empty
    nodes (8.1) are skipped. SpaceAfter=No determines the blanks between words.

    References:
        https://universaldependencies.org/format.html
    """

    path: str
    """The file: en_ewt-ud-train.conllu."""

    tag: str = "UPOS"
    """The tag of a word: UPOS, XPOS, DEPREL, or the name of a feature (Number, Case), which is "_"
    if a word lacks it.
    """

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether this source reads a path that is given without a source's name."""
        return is_conllu(path)

    def sentences(self, malformed=None):
        found: set[str] = set()
        blocks = enumerate(_blocks(self.path), start=1)
        for sentence in map_or_report(self._sentence, blocks, malformed):
            found |= {word.tag for word in sentence.words}
            yield sentence
        if found == {_NONE}:
            hint = did_you_mean(self.tag, _COLUMNS)
            raise DataError(f"{self.path}: tag = {self.tag!r}: no word has such a tag{hint}")

    def _sentence(self, numbered: tuple[int, _Block]) -> Sentence:
        number, (name, lines) = numbered
        words = _words([_line(*line) for line in lines])
        tagged = [TaggedWord(text, self._tag(line), line.where) for line, text in words]
        return Sentence(name or str(number), tagged)

    def _tag(self, line: "_Line") -> str:
        column = self.tag.upper()
        if column not in ("UPOS", "XPOS", "DEPREL"):
            pairs = (pair.partition("=") for pair in line.fields["FEATS"].split("|"))
            return next((value for name, _, value in pairs if name == self.tag), _NONE)
        if column == "UPOS" and line.fields[column] == _NONE:
            raise DataError(f"{line.where}: the word {line.fields['FORM']!r} has no UPOS tag")
        return line.fields[column]


class _Line(NamedTuple):
    where: str
    fields: dict[str, str]

    @property
    def blank_after(self) -> str:
        return "" if "SpaceAfter=No" in self.fields["MISC"].split("|") else " "


def _blocks(path: str) -> Iterator[_Block]:
    """Yields the sentences; raises DataError if the file cannot be read."""
    name, lines = None, []
    for number, text in enumerate(text_lines(path), start=1):
        where, text = f"{path}:{number}", text.rstrip("\r\n")
        if text.startswith("#") and not lines:
            key, _, value = text[1:].partition("=")
            name = value.strip() if key.strip() == "sent_id" else name
        elif text.strip():
            lines.append((where, text))
        elif lines:
            yield name, lines
            name, lines = None, []
    if lines:
        yield name, lines


def _line(where: str, text: str) -> _Line:
    fields = text.split("\t")
    if len(fields) != len(_COLUMNS):
        raise DataError(
            f"{where}: {len(fields)} fields between tabs: must be the {len(_COLUMNS)} of "
            f"CoNLL-U, {' '.join(_COLUMNS)}; got {text[:80]!r}"
        )
    return _Line(where, dict(zip(_COLUMNS, fields, strict=True)))


def _words(lines: list[_Line]) -> list[tuple[_Line, str]]:
    """Returns the syntactic words of a sentence, each with the blank before it if there is one."""
    words: list[tuple[_Line, str]] = []
    blanks = {0: ""}  # after each word, by its number
    for line in lines:
        number, name = len(words) + 1, line.fields["ID"]
        if _EMPTY_NODE.fullmatch(name):
            continue
        if ends := _RANGE.fullmatch(name):
            first, last = int(ends[1]), int(ends[2])
            if not first == number <= last <= number + len(lines):
                raise DataError(_wrong_id(line, number))
            parts = (w.fields["FORM"] for w in lines if w.fields["ID"] in _ids(first, last))
            inner = "" if "".join(parts) == line.fields["FORM"] else " "
            blanks |= dict.fromkeys(range(first, last), inner) | {last: line.blank_after}
        elif name == str(number):
            blanks.setdefault(number, line.blank_after)
            words.append((line, blanks[number - 1] + line.fields["FORM"]))
        else:
            raise DataError(_wrong_id(line, number))
    if len(words) < (last := max(blanks)):
        raise DataError(f"{lines[-1].where}: the sentence ends before the word {last} of a range")
    if not words:
        raise DataError(f"{lines[0].where}: the sentence has no words")
    return words


def _ids(first: int, last: int) -> set[str]:
    return {str(number) for number in range(first, last + 1)}


def _wrong_id(line: _Line, expected: int) -> str:
    return (
        f"{line.where}: the id {line.fields['ID']!r}: must be {expected}, a range from it "
        f"({expected}-{expected + 1}) or an empty node ({expected - 1}.1)"
    )
