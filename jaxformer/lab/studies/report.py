"""The report of a study as a page and as Markdown: sections of text, a table and a figure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.checkpoints.files import write_json
from jaxformer.io.console import markdown_table
from jaxformer.io.files import write_text
from jaxformer.io.tables import write_table
from jaxformer.lab.drawing import save
from jaxformer.lab.page import Page


class Spread(NamedTuple):
    """A number over several seeds."""

    mean: float
    low: float
    high: float

    def as_text(self, digits: int = 2) -> str:
        """Returns the mean and, if runs differ, the minimum and maximum: "3.1 (3.0-3.2)"."""
        mean, low, high = (f"{value:.{digits}f}" for value in self)
        return mean if low == high else f"{mean} ({low}–{high})"


def spread(values: Iterable[float]) -> Spread:
    """Returns the mean, minimum and maximum of at least one number."""
    values = list(values)
    return Spread(statistics.fmean(values), min(values), max(values))


def seeds_text(count: int) -> str:
    """Returns "one seed" or "3 seeds"."""
    return "one seed" if count == 1 else f"{count} seeds"


@dataclass(frozen=True)
class Section:
    """A section of a report."""

    title: str
    text: Sequence[str] = ()
    """Paragraphs before the table."""
    header: Sequence[str] = ()
    """The columns of the table; () for no table."""
    rows: Sequence[Sequence[str]] = ()
    picture: Any = None
    """A matplotlib figure, or None."""
    caption: str = ""
    name: str = ""
    """The file name of the figure, without extension."""


def write_report(
    folder: Path, title: str, sections: Sequence[Section], records: Sequence[Mapping[str, Any]]
) -> list[Path]:
    """Writes a report."""
    page = Page(title)
    lines = []
    pictures = []
    for section in sections:
        page.section(section.title)
        page.text(*section.text)
        lines += [f"### {section.title}", "", *(f"{text}\n" for text in section.text)]
        if section.header:
            page.table(section.rows, section.header)
            numbers = range(1, len(section.header))
            lines += [*markdown_table(section.header, section.rows, numbers), ""]
        if section.picture is not None:
            path = save(section.picture, folder / f"{section.name}.png")
            pictures.append(path)
            page.figure(path, section.caption)
            lines += [f"![{section.caption}]({path.name})", ""]
    files = [page.write(folder / "index.html"), folder / "report.md"]
    write_text(files[1], "\n".join(lines))
    write_json(folder / "results.json", list(records))
    write_table(folder / "results.csv", lambda: iter(records))
    return [*files, folder / "results.json", folder / "results.csv", *pictures]
