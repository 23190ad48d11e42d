"""Writes metrics as JSON lines to disk, and to loggers."""

import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxformer.checkpoints.run_dir import METRICS_FILE
from jaxformer.config.loggers import Guarded, LoggedRun, Logger, TensorBoard
from jaxformer.errors import DataError
from jaxformer.io.files import damaged_name, is_there, parse_json, read_bytes, replacing, write_text
from jaxformer.io.paths import AnyPath, any_path

_log = logging.getLogger(__name__)


class MetricsLog:
    """Appends rows of metrics to a run's folder.

    A run that resumes from step ``n`` repeats later steps, so rows past ``n`` are removed first:
    each step appears once, no matter how often the run was interrupted. Damaged lines are moved to
    a separate file.

    Args:
        folder: The run's folder.
        step: The step that training starts from.
        num_rows: Number of rows when that step was saved; 0 if unknown.
        loggers: Loggers that also receive the rows.
        config: The run's configuration as JSON, for the loggers.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        num_rows: int = 0,
        loggers: Sequence[Logger] = (TensorBoard(),),
        config: Mapping[str, Any] = MappingProxyType({}),
    ):
        self._path = folder / METRICS_FILE
        rows = [row for row in _repaired(self._path) if row["step"] <= step]
        if len(rows) < num_rows:
            _log.warning(
                "%s is damaged: it has %d rows up to step %d instead of %d; the checkpoints are "
                "not affected",
                self._path,
                len(rows),
                step,
                num_rows,
            )
        self.num_rows = len(rows)
        write_text(self._path, "".join(json.dumps(row) + "\n" for row in rows))
        # Line buffering, so that a killed process loses at most one line.
        self._file = self._path.open("a", buffering=1)
        run = LoggedRun(folder, step, config)
        self._writers = [Guarded(logger, run) for logger in loggers]

    def write(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Appends one row."""
        finite = {k: float(v) if math.isfinite(v) else None for k, v in values.items()}
        self._file.write(json.dumps({"step": step, "split": split, **finite}) + "\n")
        self.num_rows += 1
        for writer in self._writers:
            writer.scalars(split, step, values)

    def write_text(self, name: str, step: int, text: str) -> None:
        """Sends a text to the loggers."""
        for writer in self._writers:
            writer.text(name, step, text)

    def conclude(self, step: int, metrics: Mapping[str, float], picture: Path | None) -> None:
        """Sends the final results to the loggers."""
        for writer in self._writers:
            writer.conclude(step, metrics, picture)

    def close(self) -> None:
        """Flushes and closes the file and the loggers."""
        self._file.close()
        for writer in self._writers:
            writer.close()


def read_metrics(folder: AnyPath, split: str | None = None) -> list[dict[str, Any]]:
    """Returns the rows of a run in order, or those of one split.

    An incomplete last line is dropped; other damaged lines are skipped with a warning.
    """
    path = any_path(folder, "folder") / METRICS_FILE
    rows, damaged, error = _read(path)
    if error is not None:
        _log.warning("%s; skipped %s", error, _count(damaged))
    return [row for row in rows if split in (None, row["split"])]


def _read(path: AnyPath) -> tuple[list[dict[str, Any]], list[bytes], DataError | None]:
    """Returns the rows, the unreadable lines, and the first problem found."""
    if not is_there(path):
        return [], [], None
    try:
        *lines, cut_off = read_bytes(path).split(b"\n")
    except DataError as error:
        return [], [], error
    rows, damaged, first = [], [], None
    for number, line in enumerate([*lines, cut_off], start=1):
        try:
            rows.append(_row(line, f"{path}:{number}"))
        except DataError as error:
            if number <= len(lines):
                damaged.append(line)
                first = first or error
    return rows, damaged, first


def _row(line: bytes, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    numbers = [value for name, value in row.items() if name != "split" and value is not None]
    # NaN compares as false; Python's JSON parser also accepts infinities.
    if not all(type(n) in (int, float) and abs(n) <= sys.float_info.max for n in numbers):
        raise DataError(f"{where}: a value is not a finite number")
    if type(row.get("step")) is not int or row["step"] < 0 or type(row.get("split")) is not str:
        raise DataError(f"{where}: not a row of metrics with a step and a split")
    return row


def _repaired(path: Path) -> list[dict[str, Any]]:
    """Reads the rows and moves damaged lines to a separate file."""
    rows, damaged, error = _read(path)
    if error is not None:
        target = damaged_name(path)
        if damaged:
            with replacing(target) as aside:
                aside.write_bytes(b"".join(line + b"\n" for line in damaged))
        else:
            path.rename(target)
        _log.warning("%s; %s kept in %s", error, _count(damaged), target.name)
    return rows


def _count(damaged: list[bytes]) -> str:
    return f"{len(damaged)} damaged line{'s' if len(damaged) > 1 else ''}" if damaged else "it"
