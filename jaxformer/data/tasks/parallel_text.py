"""Parallel text: translations, or any other pairs of an input and an output text."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.split import train_validation_split
from jaxformer.data.tasks.records import read_parallel
from jaxformer.data.tasks.sequences import check_fit, padded
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.extras import optional_module

# Tables of names in Babel's locale data; their keys are codes, the same in all languages.
_NAMES = ("languages", "territories", "scripts", "currencies", "variants")
_NUMBERS = (1, 2, 3, 5, 7, 12, 20, 45, 99, 150)
_FIRST_DAY, _NUM_DAYS, _DAYS_APART = date(1950, 1, 1), 1500, 23


@dataclass(frozen=True)
class LocalePairs:
    """A small parallel corpus without a download: Unicode's locale data, which Babel carries.

    Some thousands of phrases: names of languages, territories, scripts and currencies; dates in
    words; amounts of currencies and of units of measurement. Phrases that are the same in both
    languages are left out.

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


class Pair(NamedTuple):
    """A text and its translation."""

    texts: tuple[str, str]
    places: tuple[str, str]
    """The place of each ("file:line"), for messages."""


@dataclass(frozen=True)
class ParallelText(Data):
    """Pairs of texts; the model produces the second from the first.

    A row of a batch has "inputs" int32 [S], the source and end-of-text; "decoder_inputs" int32 [T],
    the start token and the target; "targets" int32 [T], the target and end-of-text; "weights"
    float32 [T]; "segments" [S] and "decoder_segments" [T], 1 for tokens and 0 for padding.
    """

    source: str | None = None
    """The file of source texts, one per line; None takes the pairs of `builtin`."""

    target: str | None = None
    """The file of their translations, line by line."""

    validation_source: str | None = None
    """The source texts for validation; None holds out a share of the training pairs."""

    validation_target: str | None = None
    """Their translations."""

    builtin: LocalePairs = LocalePairs()
    """The built-in pairs, used if `source` is None."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens, in both languages."""

    start: Literal["pad", "end_of_text"] = "pad"
    """The decoder's first input: the padding token (T5, Marian) or end-of-text (BART)."""

    source_length: int = 64
    """The most tokens of a source, end-of-text included."""

    target_length: int = 64
    """The most tokens of a target, end-of-text included."""

    truncate: bool = False
    """Cut longer texts; otherwise they are an error."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", source_length=at_least(2), target_length=at_least(2))
        for first, second in (("source", "target"), ("validation_source", "validation_target")):
            if (getattr(self, first) is None) != (getattr(self, second) is None):
                raise ConfigError(
                    f"{first}={getattr(self, first)!r} and {second}={getattr(self, second)!r}: "
                    "give both files or neither"
                )

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.source_length, "decoder_inputs": self.target_length}

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads and tokenises the pairs; keeps the tokenizer.

        Args:
            folder: The run's folder.

        Returns:
            Both sides of the data, with the tokenizer.

        Raises:
            DataError: A file cannot be read, two have different numbers of lines, or a line is
                too long; names the files and the line.
        """
        train, validation = self._split()
        texts = (text for pair in train for text in pair.texts)
        tokenizer = load_or_train_tokenizer(folder, self.tokenizer, texts)
        return Datasets(
            self.dataset(self._examples(train, tokenizer), "train"),
            self.dataset(self._examples(validation, tokenizer), "validation"),
            tokenizer,
        )

    def start_id(self, tokenizer):
        return tokenizer.pad_id if self.start == "pad" else tokenizer.end_of_text_id

    def validation_examples(self, tokenizer, labels):
        if self.validation_source is None:
            return None
        pairs = _read(self.validation_source, self.validation_target)
        return self._examples(pairs, tokenizer)

    def _split(self) -> tuple[list[Pair], list[Pair]]:
        pairs = self._without_files() if self.source is None else _read(self.source, self.target)
        if self.validation_source is not None:
            return pairs, _read(self.validation_source, self.validation_target)
        names = [pair.texts[0] for pair in pairs]
        origin = self.source or self.builtin
        return train_validation_split(
            pairs, names, self.validation_fraction, self.split_seed, origin
        )

    def _without_files(self) -> list[Pair]:
        place = type(self.builtin).__name__
        return [
            Pair(texts, tuple(f"{place}, {text!r}" for text in texts))
            for texts in self.builtin.pairs()
        ]

    def _examples(self, rows: Sequence[Pair], tokenizer: Tokenizer) -> "ParallelExamples":
        pairs = [row.texts for row in rows]
        sources, targets = (tokenizer.encode_batch(side) for side in zip(*pairs, strict=True))
        places = zip(*(row.places for row in rows), strict=True)
        fields = ("source_length", "target_length")
        for ids, where, field in zip((sources, targets), places, fields, strict=True):
            sizes, limit = [len(row) + 1 for row in ids], getattr(self, field)
            check_fit(sizes, where, limit, f"data.{field}", self.truncate)
        start = self.start_id(tokenizer)
        return ParallelExamples(pairs, sources, targets, self.lengths, tokenizer, start)


class ParallelExamples(ExampleSource):
    """Tokenised pairs.

    Attributes:
        pairs: The texts themselves, (source, target), for scoring translations.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        lengths: dict[str, int],
        tokenizer: Tokenizer,
        start: int,
    ):
        """Takes texts, their tokens [tokens], the lengths of a row and the start token."""
        self.pairs, self._sources, self._targets = pairs, sources, targets
        self._lengths, self._start = lengths, start
        self._end, self._pad = tokenizer.end_of_text_id, tokenizer.pad_id

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns the encoder's and the decoder's inputs, "targets" and "weights"."""
        size, target_size = self._lengths["inputs"], self._lengths["decoder_inputs"]
        source = np.append(self._sources[index][: size - 1], np.int32(self._end))
        target = np.append(self._targets[index][: target_size - 1], np.int32(self._end))
        shifted = np.insert(target[:-1], 0, self._start)
        return {
            "inputs": padded(source, size, self._pad),
            "segments": padded(np.ones_like(source), size, 0),
            "decoder_inputs": padded(shifted, target_size, self._pad),
            "decoder_segments": padded(np.ones_like(shifted), target_size, 0),
            "targets": padded(target, target_size, self._pad),
            "weights": padded(np.ones(len(target), np.float32), target_size, 0),
        }

    def blank(self) -> Batch:
        """Returns a row of the same shapes whose weights are 0."""
        row = self.read(0, np.random.default_rng(0))
        return row | {"weights": np.zeros_like(row["weights"])}


def _read(source: str, target: str) -> list[Pair]:
    pairs = read_parallel(source, target)
    if not pairs:
        raise DataError(f"{source} has no lines")
    if not any(text.strip() and translation.strip() for text, translation in pairs):
        raise DataError(f"no line of {source} and {target} has text in both")
    return [
        Pair(texts, (f"{source}:{number}", f"{target}:{number}"))
        for number, texts in enumerate(pairs, start=1)
    ]
