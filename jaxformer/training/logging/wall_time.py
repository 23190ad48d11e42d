"""Records how the processes of a run spend wall time, in a file in the run's folder.

The first process of a job is always in one of the `PARTS`, and reads the clock when it switches to
another one, a few times per step. The sums are written at each checkpoint and evaluation and twice
a minute in between, so that a killed process loses only the last moments.
"""

import json
import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

import jax

from jaxformer.errors import DataError
from jaxformer.io.files import damaged_name, parse_json, read_bytes, replacing
from jaxformer.io.paths import AnyPath, any_path

WALL_TIME_FILE = "wall_time.jsonl"
PARTS = (
    "imports",
    "corpus",
    "start",
    "trace",
    "compile",
    "data",
    "step",
    "evaluation",
    "save",
)
"""The parts of wall time, of which one is active at a time."""
_NEWER = {"imports": 0.0, "corpus": 0.0, "trace": 0.0}
"""Parts that older versions did not record separately."""
_COMPILES = "/jax/core/compile/backend_compile_duration"
"""JAX's event of a compilation."""
INTERVAL = 30.0
"""Maximum seconds between two rows."""
_log = logging.getLogger(__name__)


def process_began() -> float:
    """Returns when this process was started, in seconds since 1970; the current time if unknown."""
    now = time.time()
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(after_name[19])  # field 22, in ticks since boot
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return now  # not Linux
    return now - max(age, 0.0)


class TimeRow(NamedTuple):
    """How a process had spent its time until it wrote a row."""

    began: float
    """When the process began, in seconds since 1970; identifies the process."""
    step: int
    """Number of updates done."""
    elapsed: float
    """Seconds since the process began."""
    seconds: dict[str, float]
    """Seconds spent on each of the `PARTS`."""
    ended: bool
    """Whether this is the last row of a process that ended normally."""


class Clock:
    """Sums the time that this process spends on each of the `PARTS`, and on compilation."""

    def __init__(self, began: float):
        self.began = began
        """When the process began, in seconds since 1970."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.elapsed = 0.0
        """When the last lap ended, in seconds since the process began."""
        self.compiled = 0.0
        """Seconds of compilation since then."""
        self._offset = time.time() - began - time.perf_counter()

    def __enter__(self) -> "Clock":
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def lap(self, part: str, **others: float) -> None:
        """Adds the time since the last lap to a part, except for the seconds added to `others`."""
        # From a monotonic clock.
        now = time.perf_counter() + self._offset
        self.seconds[part] += max(now - self.elapsed - sum(others.values()), 0.0)
        for other, seconds in others.items():
            self.seconds[other] += seconds
        self.elapsed, self.compiled = now, 0.0

    def _on_event(self, event: str, seconds: float, **_: object) -> None:
        if event == _COMPILES:
            self.compiled += seconds


class WallTime:
    """Records how this process spends its time, from the step that training starts from."""

    def __init__(self, folder: Path, clock: Clock, step: int):
        path = folder / WALL_TIME_FILE
        before = _whole_lines(path)
        with replacing(path) as aside:  # without an incomplete last line
            aside.write_bytes(b"".join(line + b"\n" for line in before))
        self._file = path.open("a", buffering=1)
        self._clock = clock
        clock.lap("start")
        self.write(step)

    def write(self, step: int, ended: bool = False) -> None:
        """Writes a row."""
        clock = self._clock
        row = TimeRow(clock.began, step, clock.elapsed, dict(clock.seconds), ended)
        seconds = {part: round(each, 4) for part, each in row.seconds.items()}
        rounded = row._replace(began=round(row.began, 4), elapsed=round(row.elapsed, 4))
        self._file.write(json.dumps(rounded._replace(seconds=seconds)._asdict()) + "\n")
        self._written = clock.elapsed

    def write_in_time(self, step: int) -> None:
        """Writes a row if the last one is old enough."""
        if self._clock.elapsed - self._written >= INTERVAL:
            self.write(step)

    def close(self, step: int) -> None:
        """Writes the last row."""
        self.write(step, ended=True)
        self._file.close()


def read_wall_time(folder: AnyPath) -> list[TimeRow]:
    """Returns the rows of all processes of a run, in the order in which they were written.

    Damaged rows are skipped with a warning.
    """
    path = any_path(folder, "folder") / WALL_TIME_FILE
    rows = []
    for number, line in enumerate(_lines(path), 1):
        try:
            rows.append(_row(line, f"{path}:{number}"))
        except DataError as error:
            _log.warning("%s; left out", error)
    return rows


def _whole_lines(path: Path) -> list[bytes]:
    """Returns the complete lines; renames a folder with this name so that training can start."""
    try:
        return _lines(path)
    except DataError as error:
        target = damaged_name(path)
        path.rename(target)
        _log.warning("%s; kept in %s", error, target.name)
        return []


def _lines(path: AnyPath) -> list[bytes]:
    """Returns the complete lines of a file; empty if it does not exist."""
    return read_bytes(path).split(b"\n")[:-1] if path.exists() else []


def _row(line: bytes, where: str) -> TimeRow:
    try:
        row = TimeRow(**parse_json(line, where))
        row = row._replace(seconds=_NEWER | row.seconds)
        numbers = [row.began, row.step, row.elapsed, *(row.seconds[part] for part in PARTS)]
        if all(type(number) in (int, float) and number >= 0 for number in numbers):
            return row
    except (TypeError, KeyError):
        pass
    raise DataError(f"{where}: must be a row of times with {', '.join(TimeRow._fields)}")
