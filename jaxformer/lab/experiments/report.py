"""The report of a lab experiment, and the files that it writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.lab.drawing import save
from jaxformer.lab.page import Page


class Report(NamedTuple):
    """An experiment with its result."""

    name: str
    """The name of its files, without extension."""
    title: str
    """The question."""
    setting: str
    """The method."""
    finding: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    figure: Any
    """A matplotlib figure."""

    def write(self, folder: Path) -> Path:
        """Writes the figure, and a page with the text, the figure and the table."""
        folder.mkdir(parents=True, exist_ok=True)
        save(self.figure, folder / f"{self.name}.png")
        page = Page(self.title)
        page.text(self.setting)
        page.figure(self.figure, self.finding, alt=self.title)
        page.table(self.rows, self.header)
        return page.write(folder / f"{self.name}.html")
