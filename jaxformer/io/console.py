"""The console for printed tables, tables without frames, and tables in Markdown."""

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

_WIDTH_OF_FILES = 200


class _Console(Console):
    """A console that raises BrokenPipeError where rich would exit, so that commands report it."""

    def on_broken_pipe(self) -> None:
        """Raises the BrokenPipeError that rich caught."""
        raise BrokenPipeError


def console() -> Console:
    """Returns a console as wide as the terminal, or 200 characters where the output is a file."""
    return _Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)


def plain_table(
    *titles: str,
    rows: Iterable[Sequence[RenderableType]] = (),
    no_wrap: bool = False,
    **options: Any,
) -> Table:
    """Returns a table without a frame; columns whose titles end in ">" are right-aligned."""
    table = Table(**{"box": None, "pad_edge": False, **options})
    for title in titles:
        justify = "right" if title.endswith(">") else "left"
        table.add_column(title.removesuffix(">").strip(), justify=justify, no_wrap=no_wrap)
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[int] = ()
) -> list[str]:
    """Returns the lines of a table in Markdown; columns in `right` are right-aligned."""
    marks = ["---:" if place in right else "---" for place in range(len(header))]
    return [f"| {' | '.join(map(str, row))} |" for row in (header, marks, *rows)]


def aligned(rows: Sequence[Sequence[str]], header: bool = False) -> list[str]:
    """Returns rows formatted as aligned columns, without the columns that are empty below the
    header.
    """
    columns = [column for column in zip(*rows, strict=True) if any(column[header:])]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]
