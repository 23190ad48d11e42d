"""Parts of a file of which nothing can be made: they stop the reader, or are reported."""

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
    """Yields what a function makes of each item."""
    for item in items:
        try:
            made = make(item)
        except DataError as error:
            if malformed is None:
                raise
            malformed(str(error))
        else:
            yield made
