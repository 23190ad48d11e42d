"""The progress of tokenising a corpus: a bar on a terminal, occasional lines elsewhere."""

import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_SECONDS_BEFORE_FIRST = 2.0
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_UPDATES = 0.2


class TokenisingProgress:
    """Shows documents, tokens, speed and the time left if it takes more than a moment.

    It writes to the standard error, since some commands print their results.

    Args:
        total: The approximate bytes of text; None if unknown.
        console: Where to write; None is the standard error.
    """

    def __init__(self, total: int | None, console: Console | None = None):
        self._total, self._console = total, console or Console(stderr=True)
        self._start, self._next = time.monotonic(), time.monotonic() + _SECONDS_BEFORE_FIRST
        self._documents = self._tokens = self._bytes = self._known = 0
        self._bar: Progress | None = None
        self._is_shown = False

    def __enter__(self) -> "TokenisingProgress":
        return self

    def skip(self, num_bytes: int) -> None:
        """Counts text that an earlier process tokenised."""
        self._known += num_bytes
        self._start = time.monotonic()
        self._show()

    def add(self, documents: int, tokens: int, num_bytes: int) -> None:
        """Counts text that was tokenised."""
        self._documents += documents
        self._tokens += tokens
        self._bytes += num_bytes
        self._show()

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._is_shown and exception[0] is None:
            took = timedelta(seconds=round(time.monotonic() - self._start))
            self._print(f"tokenised {self._counts()} in {took}")

    def _show(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._is_shown = True
        if not self._console.is_terminal:
            self._next = now + _SECONDS_BETWEEN_LINES
            self._print(f"tokenising: {self._counts()}  {self._left()}")
            return
        self._next = now + _SECONDS_BETWEEN_UPDATES
        if self._bar is None:
            columns = TextColumn("tokenising"), BarColumn(16), TextColumn("{task.description}")
            self._bar = Progress(*columns, console=self._console)
            self._bar.add_task("", total=self._total)
            self._bar.start()
        text = f"{self._counts()}  {self._left()}"
        self._bar.update(self._bar.task_ids[0], completed=self._done(), description=text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _done(self) -> int:
        return self._known + self._bytes

    def _rate(self) -> float:
        return self._bytes / max(time.monotonic() - self._start, 1e-9)

    def _counts(self) -> str:
        millions = f"{self._tokens / 1e6:,.1f}M tokens"
        return f"{self._documents:,} documents  {millions}  {self._rate() / 1e6:.1f} MB/s"

    def _left(self) -> str:
        if self._total is None or self._done() >= self._total or not self._bytes:
            return "eta ?"
        seconds = round((self._total - self._done()) / self._rate())
        return f"eta {timedelta(seconds=seconds)}"
