"""Progress on the screen: a bar on a terminal, occasional lines elsewhere."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import rich.progress
import rich.table
import rich.text
from rich.console import Console

# A log file wants a line per so many seconds at most, however fast the steps are.
SECONDS_BETWEEN_LINES = 5.0
LINE_WIDTH = 80
"""The characters of a line away from a terminal."""
_BAR_WIDTH = 10


@dataclass(frozen=True)
class Course:
    """How far a step is on the way through a run, whose steps may differ."""

    total: int
    """Steps of the whole run."""
    epochs: Callable[[int], float] | None = None
    """Passes over the training rows in so many steps; None: not known."""
    work: Callable[[int], float] = float
    """What so many steps take together, in any unit; by default all steps take the same."""
    own: Callable[[], Sequence[str]] = tuple
    """Returns the names of the metrics that parts of the model add."""

    def steps_left(self, step: int) -> float:
        """Returns what is left after a step, in steps that take what this one took."""
        latest = self.work(step) - self.work(step - 1)
        return (self.work(self.total) - self.work(step)) / latest


class Progress:
    """Shows how far training is; this one shows nothing (processes other than the first).

    Args:
        course: The steps of the whole run.
    """

    def __init__(self, course: Course):
        self.course = course
        self._started = time.perf_counter()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows a row of training metrics."""

    def message(self, text: str) -> None:
        """Shows a line that stays."""

    def close(self) -> None:
        """Leaves the terminal as it was."""

    def _line(self, step: int, values: Mapping[str, float], width: int) -> str:
        """A row of metrics in a line of at most some characters."""
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
    """A bar that redraws itself, for terminals."""

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
        """What stands right of the bar and of the number of steps, at this moment."""
        if self._row is None:
            return f"compiling {duration(time.perf_counter() - self._started)}"
        width = self._bar.console.width - _BAR_WIDTH - len(done) - len("  ")
        return self._line(*self._row, width)


class _LineColumn(rich.progress.ProgressColumn):
    """A text that is computed whenever the bar is drawn, and never wraps."""

    def __init__(self, text: Callable[[str], str]):
        super().__init__(rich.table.Column(no_wrap=True, overflow="crop"))
        self._text = text

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        """The text."""
        return rich.text.Text(self._text(f"{task.completed}/{task.total}"))


def make_progress(course: Course, start: int, visible: bool) -> Progress:
    """Returns the display that fits where the output goes."""
    if not visible:
        return Progress(course)
    return LiveProgress(course, start) if sys.stdout.isatty() else LineProgress(course)


class _Part(NamedTuple):
    """A piece of the line."""

    importance: int
    """The smallest number stays the longest where there is little room."""
    text: str


def describe(
    step: int,
    course: Course,
    values: Mapping[str, float],
    width: int = LINE_WIDTH,
    elapsed: float = 0.0,
) -> str:
    """One line of training metrics; what there is no room for is left out.

    Args:
        step: Updates done.
        course: The steps of the whole run.
        values: The metrics.
        width: The most characters.
        elapsed: Seconds since the start.

    Returns:
        The line.
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
    """Returns the most important parts that fit in a line together, in their order."""
    room, least = width, len(parts)
    for rank, part in enumerate(sorted(parts)):
        room -= len(part.text) + (2 if rank else 0)
        if room < 0:
            least = rank
            break
    kept = set(sorted(parts)[:least])
    return [part for part in parts if part in kept]


def duration(seconds: float) -> str:
    """Seconds as people write them: 4.2s, 42s, 3m 10s, 2h 05m, 3d 04h."""
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
    """Three digits and a unit: 950, 12.3k, 4.56M, 7.89B, 1.20T."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"
