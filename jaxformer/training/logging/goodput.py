"""Where the wall time of a run went, with what was lost and what lies between its starts."""

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
    "step": "updates that were kept",
    "start": "from the start of a process to its first step: imports, devices, data, a checkpoint",
    "compile": "tracing and compiling the step",
    "data": "waiting for batches",
    "evaluation": "evaluations and samples, and the conclusion of the run",
    "save": "saving checkpoints, as far as steps waited for it",
    LOST: "work after the last checkpoint of a start that ended early, done again by the next",
    BETWEEN: "no process, or one that was killed before it wrote a row (two a minute)",
}
"""The parts of the wall time, and what each is."""


@dataclass(frozen=True)
class Start:
    """A process of a run, from its start to its last row."""

    rows: tuple[TimeRow, ...]
    """What it wrote."""
    kept: TimeRow
    """The last row whose work the next starts went on from."""

    @property
    def began(self) -> float:
        """When it began, in seconds since 1970."""
        return self.rows[0].began

    @property
    def end(self) -> float:
        """When it wrote its last row, in seconds since 1970."""
        return self.began + self.rows[-1].elapsed

    @property
    def seconds(self) -> dict[str, float]:
        """What its time was spent on; work that was lost apart."""
        last = self.rows[-1].seconds
        lost = {part: last[part] - self.kept.seconds[part] for part in _WORK}
        kept = {part: last[part] - lost.get(part, 0.0) for part in PARTS}
        return kept | {LOST: sum(lost.values())}

    def pieces(self) -> Iterator[tuple[float, float, str]]:
        """Yields when its work began, how long it took and what it was, from row to row."""
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


# What is done again where the checkpoint after it is missing; a start is none.
_WORK = ("data", "step", "evaluation", "save")


@dataclass(frozen=True)
class Goodput:
    """Where the wall time of a run went, from its first start to its last row."""

    starts: tuple[Start, ...]
    """Its processes, one after the other."""

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
        """The share of the wall time in which updates were computed that were kept."""
        return self.parts["step"] / self.wall if self.wall else 0.0

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data; times in seconds."""
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
    """Returns where the wall time of a run went.

    A start that ended at step 37 while the next one goes on from step 30 has lost what it did
    after it had saved step 30.
    """
    folder = run_path(folder, "run_dir")
    rows = read_wall_time(folder)
    if not rows:
        RunConfig(folder)  # is it one at all?
        raise DataError(
            f"{folder} has no {WALL_TIME_FILE}: it was not trained since training writes one"
        )
    return Goodput(tuple(_starts(rows)))


def _starts(rows: Sequence[TimeRow]) -> Iterator[Start]:
    groups = [tuple(group) for _, group in groupby(rows, key=lambda row: row.began)]
    for number, group in enumerate(groups):
        later = min((each[0].step for each in groups[number + 1 :]), default=group[-1].step)
        kept = [row for row in group if row.step <= later]
        yield Start(group, kept[-1] if kept else group[0])


def in_rows(parts: Mapping[str, float], wall: float) -> list[tuple[str, float, float, str]]:
    """Returns the parts that took time, the longest first: name, seconds, share and meaning."""
    spent = sorted(parts.items(), key=lambda item: -item[1])
    return [(name, took, took / wall, MEANINGS[name]) for name, took in spent if took > 0]
