"""Goodput: how the wall time of a run was spent, including lost work and downtime."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

from jaxformer.checkpoints.run_dir import RunConfig
from jaxformer.errors import DataError
from jaxformer.io.paths import AnyPath, run_path
from jaxformer.training.logging.wall_time import PARTS, WALL_TIME_FILE, TimeRow, read_wall_time

LOST, BETWEEN = "lost", "between"
MEANINGS = {
    "step": "kept updates",
    "imports": "from the start of a process to its configuration: Python and the libraries",
    "corpus": "reading and tokenising the data, or finding the prepared data of an earlier start",
    "start": "the rest until the first step: other models, the devices, a checkpoint",
    "trace": "tracing the step",
    "compile": "compiling the step",
    "data": "waiting for batches",
    "evaluation": "evaluations and samples, and the conclusion of the run",
    "save": "saving checkpoints, while steps waited for it",
    LOST: "work after the last checkpoint of an interrupted start, repeated by the next one",
    BETWEEN: "no running process, or one killed before it wrote a row (every 30 seconds)",
}
"""The parts of the wall time and their meanings."""


@dataclass(frozen=True)
class Start:
    """A process of a run, from its start to its last row."""

    rows: tuple[TimeRow, ...]
    """The rows that it wrote."""
    kept: TimeRow
    """The last row whose work was kept by later starts."""

    @property
    def began(self) -> float:
        """When the process began, in seconds since 1970."""
        return self.rows[0].began

    @property
    def end(self) -> float:
        """When it wrote its last row, in seconds since 1970."""
        return self.began + self.rows[-1].elapsed

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds spent on each part, with lost work counted separately."""
        last = self.rows[-1].seconds
        lost = {part: last[part] - self.kept.seconds[part] for part in _WORK}
        kept = {part: last[part] - lost.get(part, 0.0) for part in PARTS}
        return kept | {LOST: sum(lost.values())}

    def pieces(self) -> Iterator[tuple[float, float, str]]:
        """Yields the begin, duration and part of each piece of work, row by row."""
        blank = dict.fromkeys(PARTS, 0.0)
        first = self.rows[0]._replace(elapsed=0.0, seconds=blank)
        is_kept = True
        for before, after in pairwise((first, *self.rows)):
            at = self.began + before.elapsed
            for part in PARTS:
                spent = after.seconds[part] - before.seconds[part]
                yield at, spent, part if is_kept or part not in _WORK else LOST
                at += spent
            is_kept = is_kept and after is not self.kept


# Work that is repeated if the checkpoint after it is missing; this excludes start-up.
_WORK = ("data", "step", "evaluation", "save")


@dataclass(frozen=True)
class Goodput:
    """How the wall time of a run was spent, from its first start to its last row."""

    starts: tuple[Start, ...]
    """The processes of the run, in order."""

    @property
    def wall(self) -> float:
        """Seconds from the first start to the last row."""
        return max(start.end for start in self.starts) - self.starts[0].began

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds by part, in the order of `MEANINGS`."""
        spent = [start.seconds for start in self.starts]
        found = {part: sum(each.get(part, 0.0) for each in spent) for part in MEANINGS}
        pairs = pairwise(self.starts)
        found[BETWEEN] = sum(max(after.began - before.end, 0.0) for before, after in pairs)
        return found

    @property
    def share(self) -> float:
        """The fraction of the wall time spent on kept updates."""
        return self.parts["step"] / self.wall if self.wall else 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns everything as JSON-serializable data; times in seconds."""
        return {
            "wall_seconds": self.wall,
            "goodput": self.share,
            "attributed": sum(self.parts.values()) / self.wall if self.wall else 0.0,
            "seconds": self.parts,
            "starts": [
                {
                    "began": start.began,
                    "seconds": start.end - start.began,
                    "from_step": start.rows[0].step,
                    "to_step": start.rows[-1].step,
                    "kept_to_step": start.kept.step,
                    "ended": start.rows[-1].ended,
                    "parts": start.seconds,
                }
                for start in self.starts
            ],
        }


def goodput(folder: AnyPath) -> Goodput:
    """Returns how the wall time of a run was spent.

    If a start ended at step 37 and the next one resumed from step 30, the work after saving step 30
    is lost.
    """
    folder = run_path(folder, "run_dir")
    rows = read_wall_time(folder)
    if not rows:
        RunConfig(folder)  # raises if it is not a run
        raise DataError(
            f"{folder} has no {WALL_TIME_FILE}: it was last trained by a version that did not "
            "write this file"
        )
    return Goodput(tuple(_starts(rows)))


def _starts(rows: Sequence[TimeRow]) -> Iterator[Start]:
    groups = [tuple(group) for _, group in groupby(rows, key=lambda row: row.began)]
    for number, group in enumerate(groups):
        later = min((each[0].step for each in groups[number + 1 :]), default=group[-1].step)
        kept = [row for row in group if row.step <= later]
        yield Start(group, kept[-1] if kept else group[0])


def in_rows(parts: Mapping[str, float], wall: float) -> list[tuple[str, float, float, str]]:
    """Returns the parts that took time, longest first, as name, seconds, fraction and meaning."""
    spent = sorted(parts.items(), key=lambda item: -item[1])
    return [(name, took, took / wall, MEANINGS[name]) for name, took in spent if took > 0]
