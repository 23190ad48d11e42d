"""Reads the label of a row, or its labels: columns of 0 and 1, or a column of lists of names."""

import json
import reprlib
from typing import Any

from jaxformer.data.files.record import Record
from jaxformer.errors import DataError

_WORDS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


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
    names = names_in(value)
    if names is None:
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
