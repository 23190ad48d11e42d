"""Progress display: a bar in a terminal, occasional lines elsewhere."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import rich.progress
import rich.table
import rich.text
from rich.console import Console

# Minimum seconds between lines in a log file.
SECONDS_BETWEEN_LINES = 5.0
LINE_WIDTH = 80
"""Line width in characters outside of a terminal."""
_BAR_WIDTH = 10


@dataclass(frozen=True)
class Course:
    """The length of a run, whose steps may differ in cost."""

    total: int
    """Steps of the whole run."""
    epochs: Callable[[int], float] | None = None
    """Returns the number of epochs after a number of steps; None if unknown."""
    work: Callable[[int], float] = float
    """Returns the total cost of a number of steps in any unit; by default all steps cost the same.
    """
    own: Callable[[], Sequence[str]] = tuple
    """Returns the names of metrics that parts of the model add."""

    def steps_left(self, step: int) -> float:
        """Returns the remaining work after a step, in units of this step's cost."""
        latest = self.work(step) - self.work(step - 1)
        return (self.work(self.total) - self.work(step)) / latest


class Progress:
    """Progress display; this base class shows nothing, for processes other than the first."""

    def __init__(self, course: Course):
        self.course = course
        self._started = time.perf_counter()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows a row of training metrics."""

    def message(self, text: str) -> None:
        """Prints a permanent line."""

    def close(self) -> None:
        """Restores the terminal."""

    def _line(self, step: int, values: Mapping[str, float], width: int) -> str:
        """Formats a row of metrics as a line of at most `width` characters."""
        elapsed = time.perf_counter() - self._started
        return describe(step, self.course, values, width, elapsed)


class LineProgress(Progress):
    """Plain lines, for files, pipes and continuous integration."""

    def __init__(self, course: Course):
        super().__init__(course)
        self._last_line = float("-inf")

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Prints the row unless the last one was printed a moment ago."""
        now = time.monotonic()
        if now - self._last_line < SECONDS_BETWEEN_LINES and step < self.course.total:
            return
        self._last_line = now
        start = f"step {step}/{self.course.total}  "
        print(start + self._line(step, values, LINE_WIDTH - len(start)), flush=True)

    def message(self, text: str) -> None:
        """Prints the line."""
        print(text, flush=True)


class LiveProgress(Progress):
    """A live progress bar, for terminals."""

    def __init__(self, course: Course, start: int, console: Console | None = None):
        super().__init__(course)
        self._row: tuple[int, Mapping[str, float]] | None = None
        self._bar = rich.progress.Progress(
            rich.progress.BarColumn(bar_width=_BAR_WIDTH),
            rich.progress.TextColumn("{task.completed}/{task.total}"),
            _LineColumn(self._text),
            console=console,
        )
        self._task = self._bar.add_task("", total=course.total, completed=start)
        self._bar.start()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Moves the bar."""
        self._row = step, values
        self._bar.update(self._task, completed=step)

    def message(self, text: str) -> None:
        """Prints the line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Stops redrawing."""
        self._bar.stop()

    def _text(self, done: str) -> str:
        """Returns the text to the right of the bar."""
        if self._row is None:
            return f"compiling {duration(time.perf_counter() - self._started)}"
        width = self._bar.console.width - _BAR_WIDTH - len(done) - len("  ")
        return self._line(*self._row, width)


class _LineColumn(rich.progress.ProgressColumn):
    """A column of text that is computed on each redraw and never wraps."""

    def __init__(self, text: Callable[[str], str]):
        super().__init__(rich.table.Column(no_wrap=True, overflow="crop"))
        self._text = text

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        """The text."""
        return rich.text.Text(self._text(f"{task.completed}/{task.total}"))


def make_progress(course: Course, start: int, visible: bool) -> Progress:
    """Returns the display that suits the output: terminal, file or none."""
    if not visible:
        return Progress(course)
    return LiveProgress(course, start) if sys.stdout.isatty() else LineProgress(course)


class _Part(NamedTuple):
    """A part of a progress line."""

    importance: int
    """Priority; parts with the smallest number are kept longest if space is short."""
    text: str


def describe(
    step: int,
    course: Course,
    values: Mapping[str, float],
    width: int = LINE_WIDTH,
    elapsed: float = 0.0,
) -> str:
    """Formats the metrics after a step, and the seconds since the start, as one line.

    It has at most `width` characters; less important parts are left out if space is short.
    """
    terms = [name for name in ("soft_loss", "cosine_loss") if name in values]
    preferences = ["accuracy", "margin"] if "margin" in values else []
    own = [name for name in course.own() if name in values]
    parts = [
        _Part(0, f"loss {values['loss']:.3f}"),
        *[_Part(2, f"{name} {values[name]:.2f}") for name in preferences],
        *[_Part(2, f"{name.removesuffix('_loss')} {values[name]:.3f}") for name in terms],
        *[_Part(2, f"{name} {values[name]:.3g}") for name in own],
        _Part(6, f"grad {values['gradient_norm']:.2f}"),
        _Part(7, f"lr {values['learning_rate']:.1e}"),
    ]
    if "tokens_per_second" in values:
        parts.append(_Part(3, f"{short_number(values['tokens_per_second'])} tok/s"))
        parts.append(_Part(9, f"{1000 * values['step_seconds']:.0f} ms/step"))
        parts.append(_Part(10, f"data {1000 * values['data_wait_seconds']:.1f} ms"))
    if "mfu" in values:
        parts.append(_Part(5, f"MFU {values['mfu']:.1%}"))
    if "memory_limit_bytes" in values:
        full = values["memory_peak_bytes"] / values["memory_limit_bytes"]
        parts.append(_Part(8, f"mem {full:.0%}"))
    if values.get("skipped"):
        parts.append(_Part(1, f"skipped {int(values['skipped'])}"))
    if course.epochs is not None:
        parts.append(_Part(4, f"epoch {course.epochs(step):.3g}"))
    left = ""
    if "step_seconds" in values:
        left = f" eta {duration(course.steps_left(step) * values['step_seconds'])}"
    parts.append(_Part(2, duration(elapsed) + left))
    return "  ".join(part.text for part in fitting(parts, width))


def fitting(parts: Sequence[_Part], width: int) -> list[_Part]:
    """Returns the most important parts that fit in a line, in their original order."""
    room, least = width, len(parts)
    for rank, part in enumerate(sorted(parts)):
        room -= len(part.text) + (2 if rank else 0)
        if room < 0:
            least = rank
            break
    kept = set(sorted(parts)[:least])
    return [part for part in parts if part in kept]


def duration(seconds: float) -> str:
    """Formats seconds: 4.2s, 42s, 3m 10s, 2h 05m, 3d 04h."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    if seconds < 86400:
        return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"
    return f"{seconds // 86400}d {seconds % 86400 // 3600:02d}h"


def short_number(value: float) -> str:
    """Formats a number with three digits and a unit: 950, 12.3k, 4.56M, 7.89B, 1.20T."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"
