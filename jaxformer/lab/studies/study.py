"""A study: many small runs, each trained and measured exactly once, even if interrupted."""

import contextlib
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxformer.checkpoints.files import write_json
from jaxformer.config.experiment import Config
from jaxformer.errors import ConfigError
from jaxformer.io.files import read_json
from jaxformer.io.serialization import diff, to_json
from jaxformer.training.logging.progress import duration
from jaxformer.training.logging.run_logger import TrainingDiverged
from jaxformer.training.loop import train
from jaxformer.training.result import TrainResult

Measure = Callable[[TrainResult], dict[str, Any]]
"""The measurements of a trained model, as JSON types."""

_RESULTS = "results"
_RUNS = "runs"
_COMPILED = "compiled"
# These fields are locations and do not affect results.
_PLACES = ("config.data.tokenizer.path", "config.data.corpus.cache_dir")


class Cell(NamedTuple):
    """One run of a study."""

    name: str
    """The name of its files, for example "copy-alibi-seed0"."""
    kind: str
    """Cells of the same kind take about the same time; used to estimate the remaining time."""
    config: Config
    settings: dict[str, Any]
    """Further settings that the measurement depends on, as JSON types."""
    measure: Measure


class Result(NamedTuple):
    """The stored result of a cell."""

    seconds: float
    """The time that training and measuring took."""
    measured: dict[str, Any]
    """The measurements; empty if training diverged."""
    diverged: str = ""
    """Why the measurement failed, or ""."""


@dataclass(frozen=True)
class Study:
    """The folder of a study.

    Running the same cells again continues an interrupted study: a finished cell is a file in
    `results`, an interrupted one is a run in `runs`.
    """

    folder: Path
    keep_runs: bool = False
    """Keep the folder of each run, with its checkpoint, after measuring it."""

    def run(self, cells: Sequence[Cell]) -> dict[str, Result] | None:
        """Trains and measures all unfinished cells."""
        found = {cell.name: self.finished(cell) for cell in cells}
        self._share_programs()
        for number, cell in enumerate(cells, start=1):
            if found[cell.name] is not None:
                continue
            left = time_left(cells, found)
            print(f"[{number}/{len(cells)}] {cell.name}{left}", flush=True)
            result = self._result(cell)
            if result is None:
                print("stopped; rerun the same command to continue")
                return None
            found[cell.name] = result
        return found

    def finished(self, cell: Cell) -> Result | None:
        """Returns the stored result of a cell, or None."""
        file = self._file(cell)
        if not file.is_file():
            return None
        saved = read_json(file)
        requested = _requested(cell)
        changes = diff({name: saved.get(name) for name in requested}, requested)
        listed = "; ".join(
            f"{name.removeprefix('config.')} {old!r} -> {new!r}"
            for name, (old, new) in changes.items()
            if name not in _PLACES
        )
        if listed:
            raise ConfigError(
                f"{file} was made with other settings ({listed}): name another folder with --out"
            )
        return Result(**{name: saved[name] for name in Result._fields})

    def _result(self, cell: Cell) -> Result | None:
        """Trains and measures a cell, and stores the result."""
        run = self.folder / _RUNS / cell.name
        output = run.with_name(f"{cell.name}.log")
        started = time.perf_counter()
        run.parent.mkdir(parents=True, exist_ok=True)
        diverged, measured = "", {}
        with output.open("a") as log, contextlib.redirect_stdout(log):
            try:
                result = train(cell.config, run)
                if not result.finished:
                    return None
                measured = cell.measure(result)
            except TrainingDiverged as error:
                diverged = str(error).partition(":")[0]
        found = Result(time.perf_counter() - started, measured, diverged)
        file = self._file(cell)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, _requested(cell) | found._asdict())
        if not self.keep_runs:
            shutil.rmtree(run)
            output.unlink()
        return found

    def _file(self, cell: Cell) -> Path:
        return self.folder / _RESULTS / f"{cell.name}.json"

    def _share_programs(self) -> None:
        """Enables the compilation cache, so that all seeds and tasks share their programs."""
        if jax.config.jax_compilation_cache_dir is None:
            folder = (self.folder / _COMPILED).absolute()
            jax.config.update("jax_compilation_cache_dir", str(folder))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _requested(cell: Cell) -> dict[str, Any]:
    return {"config": to_json(cell.config), "settings": cell.settings}


def time_left(cells: Sequence[Cell], found: dict[str, Result | None]) -> str:
    """Returns the approximate remaining time as text, or "" before the first cell is finished."""
    times: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        if (result := found[cell.name]) is not None:
            times[cell.kind].append(result.seconds)
    if not times:
        return ""
    known = {kind: statistics.median(seconds) for kind, seconds in times.items()}
    other = statistics.fmean(known.values())
    left = sum(known.get(cell.kind, other) for cell in cells if found[cell.name] is None)
    return f"  eta {duration(left)}"
