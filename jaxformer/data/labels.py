"""Labels: classes, whose names are saved with the run, sets of them, or numbers."""

import abc
import hashlib
import json
import logging
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from jaxformer.data.files.lines import encodable
from jaxformer.data.files.record import Record
from jaxformer.errors import DataError
from jaxformer.io.files import (
    add_digests,
    check_digests,
    read_bytes,
    read_json,
    write_digests,
    write_text,
)

_FILE, _DIGEST = LABEL_FILES = ("labels.json", "labels.json.sha256")
_INTEGER = re.compile(r"-?\d{1,4000}")  # Python reads at most this many digits
_WORDS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
_log = logging.getLogger(__name__)


def save_labels(folder: str | os.PathLike, names: Iterable[str]) -> tuple[str, ...]:
    """Writes a run's label names to labels.json, or checks them against an existing file.

    They number the outputs of the model, so they must not change.
    """
    names = tuple(names)
    file = Path(folder, _FILE)
    record = Path(folder, _DIGEST)
    for name in names:
        encodable(name, f"the label {name!r}")
    text = json.dumps(names, ensure_ascii=False) + "\n"
    if not file.exists() and not record.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, text)
    try:
        kept = load_labels(folder)
    except DataError as damage:
        if hashlib.sha256(text.encode()).hexdigest() not in read_bytes(record).decode("latin-1"):
            raise
        _log.warning("%s; restored", damage)
        _write(file, text)
        kept = names
    if kept != names:
        raise DataError(
            f"{file} holds the labels {shown(kept)}, but the training data now have "
            f"{shown(names)}: use another folder, or give the data that the run began with"
        )
    add_digests(record, [_FILE])
    return names


def load_labels(folder: str | os.PathLike) -> tuple[str, ...]:
    """Returns the names that `save_labels` wrote to a folder; empty without such a file."""
    file = Path(folder, _FILE)
    record = Path(folder, _DIGEST)
    if record.exists():
        check_digests(record, [_FILE])
    elif not file.exists():
        return ()
    names = read_json(file, list)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise DataError(f"{file}: must be a list of different strings")
    return tuple(names)


def in_order(found: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Returns the labels of the training data in the order of their numbers."""
    if not order:
        return tuple(found)
    if missing := [name for name in found if name not in order]:
        raise DataError(
            f"data.label_order = {shown(order)}: must have every label of the training data, and "
            f"lacks {shown(missing)}"
        )
    return tuple(order)


def _write(file: Path, text: str) -> None:
    write_text(file, text)
    write_digests(file.with_name(_DIGEST), [_FILE])


def numbered(labels: Iterable[str], names: Sequence[str], places: Iterable[str]) -> np.ndarray:
    """Returns the numbers of labels, int32 [labels]."""
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for label, place in zip(labels, places, strict=True):
        if label not in numbers:
            raise DataError(
                f"{place}: the label {label!r} is not one of the training data's: {shown(names)}"
            )
        found.append(numbers[label])
    return np.array(found, np.int32)


def shown(names: Sequence[str], most: int = 20) -> str:
    """Returns names for a message, at most `most` of them."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + rest if names else "none"


class LabelKind(abc.ABC):
    """What a column of labels means; subclasses are frozen dataclasses."""

    dtype: ClassVar[type[np.generic]]
    """The dtype of the targets."""

    head: ClassVar[str] = "classification"
    """The head that they train, see `Data.head`."""

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """Returns the shape of a target, given the names of the labels; () for one number."""
        del names
        return ()

    @abc.abstractmethod
    def names(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Returns the names of the labels of the training data; empty for numbers."""

    def check(self, label: str, place: str) -> None:
        """Raises DataError if a label is invalid, independently of other labels."""
        del label, place

    @abc.abstractmethod
    def values(
        self, labels: Iterable[str], names: Sequence[str], places: Iterable[str]
    ) -> np.ndarray:
        """Returns the targets of the model, [labels]."""


@dataclass(frozen=True)
class Classes(LabelKind):
    """Classes, numbered in alphabetical order; whole numbers in numerical order."""

    dtype = np.int32

    def names(self, labels):
        found = set(labels)
        whole = all(_INTEGER.fullmatch(label) for label in found)
        return tuple(sorted(found, key=lambda label: (int(label) if whole else 0, label)))

    def values(self, labels, names, places):
        return numbered(labels, names, places)


@dataclass(frozen=True)
class Number(LabelKind):
    """A number for each text (a similarity, a rating): regression."""

    dtype = np.float32
    head = "regression"

    def names(self, labels):
        del labels
        return ()

    def check(self, label, place):
        _number(label, place)

    def values(self, labels, names, places):
        del names
        return np.array([_number(*pair) for pair in zip(labels, places, strict=True)], np.float32)


@dataclass(frozen=True)
class LabelSet(LabelKind):
    """Sets of labels: the label of a row is a tuple of names, which may be empty."""

    dtype = np.float32
    head = "multi_label"

    def shape(self, names):
        return (len(names),)

    def names(self, labels):
        return Classes().names(name for label in labels for name in label)

    def values(self, labels, names, places):
        labels = list(labels)
        targets = np.zeros((len(labels), len(names)), np.float32)
        for target, label, place in zip(targets, labels, places, strict=True):
            target[numbered(label, names, [place] * len(label))] = 1.0
        return targets


def _number(label: str, place: str) -> float:
    try:
        number = float(label)
    except ValueError:
        number = np.nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise DataError(f"{place}: the label {label!r} is not a number")
    return number


# Labels in the columns of a table ----------------------------------------------------------------


def label_of(record: Record, column: str) -> str:
    """Returns the label in a column, as a string."""
    value = record.value(column)
    missing = value is None or value != value or not str(value).strip()  # NaN differs from itself
    if missing or not isinstance(value, str | int | float):
        raise DataError(
            f"{record.where}: no label: column {column!r} holds {reprlib.repr(value)}; give one"
        )
    return str(value)


def is_set(record: Record, column: str) -> bool:
    """Returns whether a row has the label of a column."""
    value = record.value(column)
    found = _WORDS.get(str(value).strip().lower())
    if found is None:
        raise DataError(
            f"{record.where}: column {column!r} holds {reprlib.repr(value)}: must be 0 or 1, as "
            "one of several labels"
        )
    return found


def label_set_of(record: Record, column: str) -> tuple[str, ...]:
    """Returns the names of the labels of a row."""
    value = record.value(column)
    if (names := names_in(value)) is None:
        raise DataError(
            f"{record.where}: column {column!r} holds {reprlib.repr(value)}: must be a list of "
            'labels, such as ["a", "b"]'
        )
    return names


def names_in(value: Any) -> tuple[str, ...] | None:
    """Returns the names in a list of labels, or in its JSON; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, list | tuple):
        return None
    fits = all(isinstance(name, str | int) and str(name).strip() for name in value)
    return tuple(dict.fromkeys(map(str, value))) if fits else None
