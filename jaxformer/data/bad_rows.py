"""Handles rows that cannot be used: they stop the run, or are left out and counted."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from jaxformer.data.files.lines import Malformed
from jaxformer.data.files.tables import read_records
from jaxformer.errors import DataError

OnBadRow = Literal["stop", "skip"]
MOST_SKIPPED = 0.05
"""The largest share of rows that may be left out; with more, the file is probably the wrong one."""

_SHOWN = 3
_ADVICE = f"or leave such rows out, {MOST_SKIPPED:.0%} of them at most, with --data.on-bad-row skip"
_log = logging.getLogger(__name__)

Row = TypeVar("Row")
Result = TypeVar("Result")


def with_skip_advice(error: DataError) -> str:
    """Returns the error about a row that stops the run, and names the option to leave it out."""
    return f"{error}; {_ADVICE}"


class BadRows:
    """The rows of a source that cannot be used: they stop the run, or are left out."""

    def __init__(self, on_bad_row: OnBadRow):
        self.skips = on_bad_row == "skip"
        self._messages: list[str] = []

    def add(self, error: DataError) -> None:
        """Leaves a row out."""
        if not self.skips:
            raise DataError(with_skip_advice(error)) from error
        self._messages.append(str(error))

    def finish(self, source: object, total: int) -> None:
        """Reports the number of rows left out, and the reason for the first one."""
        if not self._messages:
            return
        count = len(self._messages)
        first = "; ".join(self._messages[:_SHOWN])
        share = f"{count:,} of {total:,} rows"
        if count > MOST_SKIPPED * total:
            raise DataError(
                f"{source}: {share} cannot be used, more than the {MOST_SKIPPED:.0%} that "
                f"--data.on-bad-row skip leaves out; the first: {first}"
            )
        _log.warning("%s: %s left out; the first: %s", source, share, first)


def read_rows(
    source: object,
    read: Callable[[Any], Row | None],
    on_bad_row: OnBadRow,
    records: Callable[[Malformed], Iterable[Any]] | None = None,
    rows_are: str = "rows",
) -> list[Row]:
    """Returns the rows of a table, or those that `records` yields."""
    bad = BadRows(on_bad_row)
    rows = []
    total = 0
    empty = []

    def malformed(message: str) -> None:
        nonlocal total
        total += 1
        bad.add(DataError(message))

    found = records(malformed) if records else read_records(source, malformed=malformed)
    for record in found:
        total += 1
        try:
            row = read(record)
        except DataError as error:
            bad.add(error)
            continue
        if row is None:
            empty.append(record.where)
        else:
            rows.append(row)
    bad.finish(source, total)
    if empty:
        _log.warning(
            "%s: %s of %s rows have no label or text and are left out; the first: %s",
            source, f"{len(empty):,}", f"{total:,}", empty[0],
        )  # fmt: skip
    if not rows:
        raise DataError(f"{source} has no {rows_are}{' with a label or text' if empty else ''}")
    return rows


def each(
    function: Callable[[Sequence[Row]], Sequence[Result]], rows: Sequence[Row], bad: BadRows
) -> Iterator[tuple[Row, Result]]:
    """Yields each row with the result of a function."""
    try:
        yield from zip(rows, function(rows), strict=True)
    except DataError as error:
        if len(rows) == 1 or not bad.skips:
            bad.add(error)
            return
        middle = len(rows) // 2
        for half in (rows[:middle], rows[middle:]):
            yield from each(function, half, bad)


def map_rows(
    function: Callable[[Sequence[Row]], Sequence[Result]],
    rows: Sequence[Row],
    on_bad_row: OnBadRow,
    what: str,
) -> tuple[list[Row], list[Result]]:
    """Returns the rows for which a function succeeds, and its results; the others are bad rows."""
    bad = BadRows(on_bad_row)
    kept = list(each(function, rows, bad))
    bad.finish(what, len(rows))
    return [row for row, _ in kept], [result for _, result in kept]
