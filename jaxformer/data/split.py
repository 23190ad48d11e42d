"""The validation split: whole documents, chosen by a hash of their names."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from jaxformer.data.dataset import hash_of
from jaxformer.data.text.sources import Document, TextSource
from jaxformer.errors import DataError

T = TypeVar("T")

# Only the start of a larger source is read twice.
_SURVEYED_CHARACTERS = 1 << 26


_SHARE, _ROWS, _MOST = 0.01, 20, 0.1
"""Without a fraction: this share or this many rows, whichever is more, but at most a tenth."""


def held_out(names: Iterable[str], fraction: float | None, seed: int) -> np.ndarray:
    """Chooses which documents are held out for validation.

        held_out(name) = hash(seed, name) / 2^64 < fraction

    A document's side depends only on its own name, so adding documents does not move the others.
    The only exception keeps both sides non-empty: if the rule leaves a side empty, it gets the
    document whose hash is nearest.
    """
    hashes = np.array([_hash(f"{seed}/{name}") for name in names])
    if fraction is None:
        count = int(min(max(_SHARE * len(hashes), _ROWS), _MOST * len(hashes)))
        fraction = np.nextafter(np.sort(hashes)[max(count, 1) - 1], 1.0)
    chosen = hashes < fraction
    if not chosen.any():
        chosen[_alike(hashes, hashes.argmin())] = True
    elif chosen.all():
        chosen[_alike(hashes, hashes.argmax())] = False
    return chosen


def _alike(hashes: np.ndarray, document: int) -> np.ndarray:
    """The documents with the same name as a document, or only that one if all share a name."""
    found = np.flatnonzero(hashes == hashes[document])
    return found if len(found) < len(hashes) else found[:1]


def train_validation_split(
    rows: Sequence[T], names: Iterable[str], fraction: float | None, seed: int, source: object
) -> tuple[list[T], list[T]]:
    """Returns the rows for training and those held out, see `held_out`."""
    if len(rows) < 2:
        raise DataError(
            f"{source}: {len(rows)} rows, too few to hold some out for validation; give more, or "
            "separate validation data"
        )
    held = held_out(names, fraction, seed)
    train = [row for row, out in zip(rows, held, strict=True) if not out]
    return train, [row for row, out in zip(rows, held, strict=True) if out]


class _Start(NamedTuple):
    """The first documents, read to choose the sides."""

    names: Sequence[str] = ()
    is_all: bool = False
    exceptions: Mapping[int, bool] = MappingProxyType({})
    """The side of the document that keeps a side non-empty, by its number from 1."""


@dataclass(frozen=True)
class Split:
    """A source's documents, each with its side.

    If a source has a single document, its tail is held out instead: the last `fraction` of its
    characters, from the start of a line if one is near.
    """

    source: TextSource
    fraction: float | None
    """The expected share of documents held out; None: no documents."""
    seed: int

    def __iter__(self) -> Iterator[tuple[Document, bool]]:
        """Yields (document, whether it is held out) in the source's order, without empty ones.

        The sides are those of `held_out`, without holding the names of a large source in memory.
        """
        start = _Start() if self.fraction is None else self._read_start()
        if start.is_all and len(start.names) == 1:
            yield from self._halves(next(self._documents()))
            return
        count = 0
        for count, document in enumerate(self._documents(), start=1):
            known = list(start.names[count - 1 : count])
            if known != [document.name] and (known or start.is_all):
                raise self._changed()
            held = self.fraction is not None and self._hash(document) < self.fraction
            yield document, start.exceptions.get(count, held)
        if count < len(start.names):
            raise self._changed()
        if not count:
            raise DataError(f"{self.source} holds no text: check its path, or give another source")

    def _read_start(self) -> "_Start":
        """Reads the first documents, and more until each side has one."""
        names: list[str] = []
        size, count, sides = 0, 0, set()
        least, most = (math.inf, 0), (-math.inf, 0)
        for count, document in enumerate(self._documents(), start=1):
            if size < _SURVEYED_CHARACTERS:
                names.append(document.name)
                size += len(document.name) + len(document.text)
            elif len(sides) == 2:
                return _Start(names)
            value = self._hash(document)
            sides.add(value < self.fraction)
            least = min(least, (value, count))
            most = max(most, (value, -count))
        exceptions = {}
        if len(sides) == 1:
            exceptions = {-most[1]: False} if True in sides else {least[1]: True}
        return _Start(names, count == len(names), exceptions)

    def _changed(self) -> DataError:
        return DataError(f"{self.source}: the documents changed while they were read")

    def _hash(self, document: Document) -> float:
        return _hash(f"{self.seed}/{document.name}")

    def _documents(self) -> Iterator[Document]:
        return (document for document in self.source.documents() if document.text)

    def _halves(self, document: Document) -> Iterator[tuple[Document, bool]]:
        size = len(document.text)
        if size < 2:
            raise DataError(
                f"{document.name} is the only document and has one character: too little to hold "
                "out a part for validation"
            )
        cut = min(max(round(size * (1 - self.fraction)), 1), size - 1)
        newline = document.text.find("\n", cut, cut + (size - cut) // 2)
        cut = cut if newline < 0 else newline + 1
        yield Document(document.name, document.text[:cut]), False
        yield Document(f"{document.name} (tail)", document.text[cut:]), True


def _hash(text: str) -> float:
    return hash_of(text) / 2**64
