"""What an experiment of the laboratory reports, and the files that it writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.lab.drawing import save
from jaxformer.lab.page import Page


class Report(NamedTuple):
    """An experiment with its result."""

    name: str
    """The name of its files, without the ending."""
    title: str
    """What was asked."""
    setting: str
    """What was done."""
    finding: str
    """What was found."""
    header: Sequence[str]
    """The columns of the table."""
    rows: Sequence[Sequence[object]]
    """The rows of the table."""
    figure: Any
    """A matplotlib figure."""

    def write(self, folder: Path) -> Path:
        """Writes the picture and a page with the sentences, the picture and the table."""
        folder.mkdir(parents=True, exist_ok=True)
        save(self.figure, folder / f"{self.name}.png")
        page = Page(self.title)
        page.text(self.setting)
        page.figure(self.figure, self.finding, alt=self.title)
        page.table(self.rows, self.header)
        return page.write(folder / f"{self.name}.html")
