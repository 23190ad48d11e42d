"""A small parallel corpus that needs no download: the Unicode locale data that Babel carries."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from jaxformer.errors import DataError
from jaxformer.extras import optional_module

# Tables of names in Babel's locale data; their keys are codes, the same in all languages.
_NAMES = ("languages", "territories", "scripts", "currencies", "variants")
_NUMBERS = (1, 2, 3, 5, 7, 12, 20, 45, 99, 150)
_FIRST_DAY, _NUM_DAYS, _DAYS_APART = date(1950, 1, 1), 1500, 23


@dataclass(frozen=True)
class LocalePairs:
    """What Unicode's Common Locale Data Repository says in two languages.

    Names of languages, territories, scripts and currencies; dates in words; amounts of currencies
    and of units of measurement: some thousands of phrases, those left out that are the same in
    both languages.

    Reference:
        Unicode CLDR, https://cldr.unicode.org
    """

    source: str = "en"
    """The language that is translated, by its code."""

    target: str = "de"
    """The language that it is translated to."""

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
    """Yields (what is said, how this language says it)."""
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
