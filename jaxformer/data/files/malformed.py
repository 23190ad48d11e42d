"""Malformed parts of a file: they stop the reader, or are reported."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from jaxformer.errors import DataError

Malformed = Callable[[str], None]
"""Receives what is wrong with a line or a row, which is then left out."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def attempted(
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
