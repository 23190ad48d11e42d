"""Progress on the screen: a bar on a terminal, occasional lines elsewhere."""

import sys
import time
from collections.abc import Mapping

import rich.progress
from rich.console import Console

# A log file wants a line per so many seconds at most, however fast the steps are.
SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Shows how far training is; this one shows nothing (processes other than the first).

    Args:
        total: Steps of the whole run.
    """

    def __init__(self, total: int):
        self.total = total

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows a row of training metrics."""

    def message(self, text: str) -> None:
        """Shows a line that stays."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


class LineProgress(Progress):
    """Plain lines, for files, pipes and continuous integration."""

    def __init__(self, total: int):
        super().__init__(total)
        self._last_line = float("-inf")

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Prints the row unless the last one was printed a moment ago."""
        now = time.monotonic()
        if now - self._last_line < SECONDS_BETWEEN_LINES and step < self.total:
            return
        self._last_line = now
        print(f"step {step}/{self.total}  {describe(step, self.total, values)}", flush=True)

    def message(self, text: str) -> None:
        """Prints the line."""
        print(text, flush=True)


class LiveProgress(Progress):
    """A bar that redraws itself, for terminals."""

    def __init__(self, total: int, start: int, console: Console | None = None):
        super().__init__(total)
        self._bar = rich.progress.Progress(
            rich.progress.BarColumn(bar_width=24),
            rich.progress.TextColumn("{task.completed}/{task.total}"),
            rich.progress.TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._bar.add_task("compiling ...", total=total, completed=start)
        self._bar.start()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Moves the bar."""
        text = describe(step, self.total, values)
        self._bar.update(self._task, completed=step, description=text)

    def message(self, text: str) -> None:
        """Prints the line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Stops redrawing."""
        self._bar.stop()


def make_progress(total: int, start: int, visible: bool) -> Progress:
    """Returns the display that fits where the output goes.

    Args:
        total: Steps of the whole run.
        start: Steps done already.
        visible: False for processes that shall not print.
    """
    if not visible:
        return Progress(total)
    return LiveProgress(total, start) if sys.stdout.isatty() else LineProgress(total)


def describe(step: int, total: int, values: Mapping[str, float]) -> str:
    """One line of training metrics: loss, gradient norm, learning rate, speed, time left."""
    terms = [name for name in ("soft_loss", "cosine_loss") if name in values]
    terms += ["accuracy", "margin"] if "margin" in values else []
    parts = [
        f"loss {values['loss']:.3f}",
        *[f"{name.removesuffix('_loss')} {values[name]:.3f}" for name in terms],
        f"grad {values['gradient_norm']:.2f}",
        f"lr {values['learning_rate']:.2e}",
    ]
    if "tokens_per_second" in values:
        parts.append(f"{short_number(values['tokens_per_second'])} tok/s")
        parts.append(f"{1000 * values['step_seconds']:.0f} ms/step")
        parts.append(f"data {1000 * values['data_wait_seconds']:.1f} ms")
    if "mfu" in values:
        parts.append(f"MFU {values['mfu']:.1%}")
    if "step_seconds" in values:
        parts.append(f"eta {duration((total - step) * values['step_seconds'])}")
    if values.get("skipped"):
        parts.append(f"skipped {int(values['skipped'])}")
    return "  ".join(parts)


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
