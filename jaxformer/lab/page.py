"""A self-contained HTML page of text, tables and figures."""

import base64
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jaxformer.checks import check_argument
from jaxformer.errors import ArgumentError
from jaxformer.io.files import read_bytes, write_text

_STYLE = """\
:root { color-scheme: light dark; --text: #1f2328; --back: #fff; --quiet: #59636e; --line: #d1d9e0;
  --shade: #f6f8fa; --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #0d1117; --quiet: #9198a1;
  --line: #3d444d; --shade: #151b23; --link: #79b8ff; } }
body { color: var(--text); background: var(--back); margin: 0 auto; padding: 1.5rem;
  max-width: 62rem; font: 16px/1.55 system-ui, sans-serif; }
h1, h2 { line-height: 1.25; } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
p, nav { max-width: 46rem; } a { color: var(--link); }
nav ol { columns: 2 20rem; padding-left: 1.5rem; }
figure { margin: 1.5rem 0; }
figure img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption, caption { color: var(--quiet); font-size: 0.92rem; text-align: left; max-width: 46rem; }
caption { padding-bottom: 0.4rem; }
.scroll { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.8rem; border-bottom: 1px solid var(--line); text-align: left; }
th { background: var(--shade); } .number { text-align: right; }
"""


class Page:
    """A page that is built top to bottom and written as a single file.

    Figures and styles are embedded, so the file can be opened offline and shared. Sections are
    listed in a table of contents.
    """

    def __init__(self, title: str):
        """Starts an empty page; `title` is its heading and the window title."""
        self.title = title
        self._sections: list[tuple[str, str]] = []
        self._body: list[str] = []

    def section(self, title: str) -> None:
        """Starts a section, which the table of contents lists."""
        words = re.sub(r"\W+", "-", title.lower()).strip("-")
        anchor = f"{len(self._sections) + 1}-{words}"
        self._sections.append((anchor, title))
        self.html(f'<h2 id="{anchor}">{escape(title)}</h2>')

    def text(self, *paragraphs: str) -> None:
        """Adds paragraphs of plain text."""
        for paragraph in paragraphs:
            self.html(f"<p>{escape(paragraph)}</p>")

    def table(
        self, rows: Iterable[Sequence[object]], header: Sequence[str], caption: str = ""
    ) -> None:
        """Adds a table; numeric columns are right-aligned."""
        rows = [list(row) for row in rows]
        for row in rows:
            wanted = f"{len(header)} cells, one for each column of the header"
            check_argument("row", row, len(row) == len(header), wanted)
        columns = zip(*rows, strict=True)
        numeric = [all(map(_is_number, column)) for column in columns] or [False] * len(header)
        lines = [_row(header, "th", numeric), *(_row(row, "td", numeric) for row in rows)]
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        content = "\n".join([title, *lines])
        self.html(f'<div class="scroll"><table>{content}\n</table></div>')

    def figure(self, figure: Any, caption: str, alt: str | None = None) -> None:
        """Adds a matplotlib figure, or a PNG file."""
        if isinstance(figure, str | Path):
            data = read_bytes(figure)
        else:
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", bbox_inches="tight")
            data = buffer.getvalue()
        words = escape(caption if alt is None else alt, quote=True)
        self.html(
            f'<figure><img alt="{words}" src="{png_source(data)}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def html(self, fragment: str) -> None:
        """Adds an HTML fragment, which must not load external resources."""
        self._body.append(fragment)

    def write(self, path: str | Path) -> Path:
        """Writes the page."""
        path = Path(path)
        if path.suffix != ".html":
            raise ArgumentError(f"path = {str(path)!r}: must end in .html")
        write_text(path, self._document())
        return path

    def _document(self) -> str:
        title = escape(self.title)
        links = "\n".join(f'<li><a href="#{a}">{escape(t)}</a></li>' for a, t in self._sections)
        contents = f'<nav aria-label="Contents"><ol>\n{links}\n</ol></nav>\n' if links else ""
        body = "\n".join(self._body)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
            f"<h1>{title}</h1>\n{contents}{body}\n</body>\n</html>\n"
        )


def png_source(data: bytes) -> str:
    """Returns the bytes of a PNG file as the `src` of an image."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def shown(value: object) -> str:
    """Formats a cell: numbers have four significant digits, or more if their integer part does."""
    if not _is_number(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    if 1e4 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _is_number(value: object) -> bool:
    is_real = hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0
    return is_real and not isinstance(value, bool)


def _row(cells: Sequence[object], tag: str, numeric: Sequence[bool]) -> str:
    marks = [' class="number"' if right else "" for right in numeric]
    pairs = zip(marks, cells, strict=True)
    content = "".join(f"<{tag}{mark}>{escape(shown(cell))}</{tag}>" for mark, cell in pairs)
    return f"<tr>{content}</tr>"
