"""What a run measures, on disk: JSON lines for programs, TensorBoard events for people."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

FILE = "metrics.jsonl"


class MetricsLog:
    """Appends rows of metrics to a run's folder.

    A run that resumes from step ``n`` measures what came after once more, so the rows past ``n``
    go first: each step appears once, however often the run was interrupted.

    Args:
        folder: The run's folder.
        step: The step that training starts from.
    """

    def __init__(self, folder: Path, step: int):
        from tensorboardX import SummaryWriter

        self._path = folder / FILE
        rows = [row for row in read_metrics(folder) if row["step"] <= step]
        temporary = self._path.with_name(FILE + ".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.replace(temporary, self._path)
        # buffering=1 writes row by row, so that a killed process loses at most half a line.
        self._file = self._path.open("a", buffering=1)
        self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Appends one row.

        Args:
            split: ``"train"`` or ``"validation"``.
            step: Updates done.
            values: The measured numbers; one that is not finite becomes null.
        """
        finite = {k: float(v) if math.isfinite(v) else None for k, v in values.items()}
        self._file.write(json.dumps({"step": step, "split": split, **finite}) + "\n")
        for name, value in values.items():
            self._events.add_scalar(f"{split}/{name}", float(value), step)

    def write_text(self, name: str, step: int, text: str) -> None:
        """Shows a text in TensorBoard.

        Args:
            name: What it is.
            step: Updates done.
            text: Shown as it is.
        """
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        self._events.add_text(name, indented, step)

    def close(self) -> None:
        """Flushes both files."""
        self._file.close()
        self._events.close()


def read_metrics(folder: Path) -> list[dict]:
    """Returns the rows of a run in order; a last line that a killed process cut off is dropped."""
    path = folder / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON: {line[:80]!r}") from None
    return rows
