"""Malformed parts of a file: they stop the reader, or are reported."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from jaxformer.errors import DataError

Malformed = Callable[[str], None]
"""Receives the error of a line or a row that is left out."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def map_or_report(
    make: Callable[[Item], Made], items: Iterable[Item], malformed: Malformed | None
) -> Iterator[Made]:
    """Yields the result of a function for each item."""
    for item in items:
        try:
            made = make(item)
        except DataError as error:
            if malformed is None:
                raise
            malformed(str(error))
        else:
            yield made
