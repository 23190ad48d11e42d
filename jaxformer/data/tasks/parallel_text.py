"""Parallel text: translations in two files, line by line."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from jaxformer.data.bad_rows import read_rows
from jaxformer.data.files.lines import Malformed, byte_lines, line_text, map_or_report
from jaxformer.data.tasks.text_to_text import TextPair, TextToText
from jaxformer.errors import ConfigError, DataError
from jaxformer.extras import optional_module

# Tables of names in Babel's locale data; their keys are codes, the same in all languages.
_NAMES = ("languages", "territories", "scripts", "currencies", "variants")
_NUMBERS = (1, 2, 3, 5, 7, 12, 20, 45, 99, 150)
_FIRST_DAY = date(1950, 1, 1)
_NUM_DAYS = 1500
_DAYS_APART = 23


@dataclass(frozen=True)
class LocalePairs:
    """A small parallel corpus without a download: Unicode's locale data, which Babel includes.

    A few thousand phrases: names of languages, territories, scripts and currencies; written dates;
    amounts of currencies and of units of measurement. Phrases that are the same in both languages
    are left out.

    References:
        Unicode CLDR, https://cldr.unicode.org
    """

    source: str = "en"
    """The code of the source language."""

    target: str = "de"
    """The code of the target language."""

    def pairs(self) -> list[tuple[str, str]]:
        """Returns (source phrase, its translation), each source phrase once.

        Raises:
            DataError: Babel does not know a language.
            MissingExtra: Babel is not installed.
        """
        babel = optional_module("babel", "LocalePairs")
        for part in ("babel.dates", "babel.numbers", "babel.units"):
            optional_module(part, "LocalePairs")
        locales = [self._locale(babel, code) for code in (self.source, self.target)]
        first, second = (
            {key: " ".join(phrase.split()) for key, phrase in _phrases(babel, locale)}
            for locale in locales
        )
        found = {first[key]: second[key] for key in first if key in second}
        return [(source, target) for source, target in found.items() if source != target]

    def _locale(self, babel: Any, code: str) -> Any:
        try:
            return babel.Locale.parse(code)
        except (ValueError, babel.UnknownLocaleError) as error:
            raise DataError(f"LocalePairs: Babel knows no language {code!r}: {error}") from error


def _phrases(babel: Any, locale: Any) -> Iterator[tuple[tuple, str]]:
    """Yields (key, the phrase in this language)."""
    currencies = sorted(locale.currencies)
    for table in _NAMES:
        for code, name in sorted(getattr(locale, table).items()):
            yield (table, code), name
    for number in range(_NUM_DAYS):
        day = _FIRST_DAY + timedelta(_DAYS_APART * number)
        style = ("full", "long")[number % 2]
        yield ("date", number), babel.dates.format_date(day, style, locale)
    for place, code in enumerate(currencies):
        for turn in range(3):
            count = _NUMBERS[(place + 3 * turn) % len(_NUMBERS)]
            name = babel.numbers.get_currency_name(code, count, locale)
            yield ("amount", code, count), f"{count} {name}"
    yield from _measures(babel, locale)


def _measures(babel: Any, locale: Any) -> Iterator[tuple[tuple, str]]:
    for place, unit in enumerate(sorted(locale.unit_display_names)):
        for turn in range(3):
            count = _NUMBERS[(place + 3 * turn) % len(_NUMBERS)]
            try:
                phrase = babel.units.format_unit(count, unit, "long", locale=locale)
            except babel.units.UnknownUnitError:
                continue
            yield ("measure", unit, count), phrase


def read_parallel(
    source: str | os.PathLike, target: str | os.PathLike, malformed: Malformed | None = None
) -> Iterator[TextPair]:
    """Returns the pairs of lines of two files, one of which translates the other.

    A pair with a line that cannot be decoded is reported to `malformed` and left out; without it,
    such a line is an error.
    """
    files = source, target
    sides = [list(byte_lines(path)) for path in files]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source} has {len(sides[0])} lines and {target} has {len(sides[1])}: each line of "
            "one must translate the same line of the other"
        )

    def pair(numbered: tuple[int, tuple[bytes, bytes]]) -> TextPair:
        number, lines = numbered
        texts = (line_text(*side, number) for side in zip(lines, files, strict=True))
        places = (f"{path}:{number}" for path in files)
        return TextPair(tuple(text.rstrip("\r\n") for text in texts), tuple(places))

    return map_or_report(pair, enumerate(zip(*sides, strict=True), start=1), malformed)


@dataclass(frozen=True)
class ParallelText(TextToText):
    """Pairs of texts in two files; each line of one translates the same line of the other.

    Rows of a batch are as in `TextToText`.
    """

    source: str | None = None
    """The file of source texts, one per line; None: the pairs of `builtin`."""

    target: str | None = None
    """The file of their translations, line by line."""

    validation_source: str | None = None
    """The source texts for validation; None holds out a share of the training pairs."""

    validation_target: str | None = None
    """Their translations."""

    builtin: LocalePairs = LocalePairs()
    """The built-in pairs, used if `source` is None."""

    def __post_init__(self):
        super().__post_init__()
        for first, second in (("source", "target"), ("validation_source", "validation_target")):
            if (getattr(self, first) is None) != (getattr(self, second) is None):
                raise ConfigError(
                    f"{first}={getattr(self, first)!r} and {second}={getattr(self, second)!r}: "
                    "give both files or neither"
                )

    @property
    def origin(self) -> str:
        return self.source or str(self.builtin)

    def train_rows(self):
        if self.source is not None:
            return self._read(self.source, self.target)
        place = type(self.builtin).__name__
        return [
            TextPair(texts, tuple(f"{place}, {text!r}" for text in texts))
            for texts in self.builtin.pairs()
        ]

    def validation_rows(self):
        if self.validation_source is None:
            return None
        return self._read(self.validation_source, self.validation_target)

    def _read(self, source: str, target: str) -> list[TextPair]:
        def checked(pair: TextPair) -> TextPair | None:
            return pair.checked("the line", "the line")

        def records(malformed: Malformed) -> list[TextPair]:
            pairs = list(read_parallel(source, target, malformed))
            if pairs and not any(all(text.strip() for text in pair.texts) for pair in pairs):
                raise DataError(f"no line of {source} and {target} has text in both")
            return pairs

        return read_rows(f"{source} and {target}", checked, self.on_bad_row, records)
