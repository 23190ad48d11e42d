"""Logs the metrics of a run to the screen and to disk, one step late.

Metrics and TensorBoard events are appended to, which object stores do not support. The logs of a
run in an object store are therefore written locally (`LogFolder`), and changed files are uploaded
every half minute, before each checkpoint completes, and at the end.
"""

import contextlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoints.run_dir import METRICS_FILE
from jaxformer.config.loggers import WANDB_ID
from jaxformer.config.train import TrainConfig
from jaxformer.distributed.processes import is_first
from jaxformer.errors import RunError, StorageError
from jaxformer.io.paths import AnyPath, is_remote
from jaxformer.training.logging.metrics_writer import MetricsLog
from jaxformer.training.logging.progress import Course, duration, make_progress
from jaxformer.training.logging.throughput import RunWork, Stopwatch, device_memory
from jaxformer.training.logging.wall_time import WALL_TIME_FILE, Clock, WallTime

_AVERAGED = ("loss", "accuracy", "gradient_norm")
"""The first metrics of a row; like all metrics of a loss, they are means over the row's steps."""
_LAST = ("learning_rate", "tokens", "skipped")
"""Metrics for which a row has the value of its last step."""
_COUNTER = "skipped_in_a_row"
_MOST_IN_WORDS = 14
_ADVICE = (
    "Try a lower learning rate or a longer warm-up (--optimizer.schedule.learning-rate, "
    "--optimizer.schedule.warmup-steps), a smaller --train.clip-norm, or --model.compute-dtype "
    "float32."
)
INTERVAL = 30.0
"""Seconds between two uploads."""
_log = logging.getLogger(__name__)


class TrainingDiverged(RunError):
    """Too many updates had a non-finite loss or gradient, consecutively or over the whole run."""


def check_learned(steps: int, skipped: int) -> None:
    """Raises TrainingDiverged if most updates of a run were skipped."""
    if 2 * skipped > steps:
        raise TrainingDiverged(
            f"{skipped} of {steps} updates had a non-finite loss or gradient and were "
            f"skipped{': the parameters never changed' if skipped == steps else ''}. {_ADVICE} "
            "`jaxformer doctor` checks whether this machine computes correctly."
        )


class RunLogger:
    """Reads the metrics of a step after dispatching the next one, so that devices never wait.

    Args:
        settings: The training settings: steps, logging interval, and when a run has diverged.
        folder: The run's folder.
        step: The step that training starts from.
        work: The work of the steps.
        state: The property `state` as saved at that step; empty if unknown.
        config: The run's configuration as JSON, for the loggers.
        epochs: Returns the number of epochs after a number of steps; None if unknown.
        clock: The process's clock so far; None starts one now.
        own: Returns the names of metrics that parts of the model add.
    """

    def __init__(
        self,
        settings: TrainConfig,
        folder: AnyPath,
        step: int,
        work: RunWork,
        state: Mapping[str, Any] = MappingProxyType({}),
        config: Mapping[str, Any] = MappingProxyType({}),
        epochs: Callable[[int], float] | None = None,
        clock: Clock | None = None,
        own: Callable[[], Sequence[str]] = tuple,
    ):
        self._settings, self._work = settings, work
        self._stopwatch = Stopwatch()
        self._logs = LogFolder(folder, continues=is_first())
        self._files = None
        self._clock = Clock(time.time()) if clock is None else clock
        self._time: WallTime | None = None
        if is_first():
            rows = state.get("rows", 0)
            self._files = MetricsLog(self.folder, step, rows, settings.loggers, config)
            self._time = WallTime(self.folder, self._clock, step)
        self._step = step
        self._at = "start"
        self._compiled = None
        course = Course(settings.steps, epochs, work.flops, own)
        self._progress = make_progress(course, step, is_first())
        self._pending: tuple[int, Any] | None = None
        self._rows = list(state.get("unlogged", ()))
        self._stage: int | None = None

    def before(self, step: int) -> None:
        """Reads pending metrics before a step whose batch has a new shape.

        Its compilation must not count towards the previous step.
        """
        self._switch_to("step")
        if self._work.stage(step - 1).start == step - 1:
            self.flush()

    @property
    def folder(self) -> Path:
        """The folder of the logs: the run's folder, or a local folder that is uploaded."""
        return self._logs.path

    def push(self) -> None:
        """Uploads changed logs of a run in an object store."""
        self._logs.push()

    def step(self, step: int, metrics: Mapping[str, jax.Array], waited: float) -> None:
        """Takes the metrics of the dispatched step; reads those of the previous one."""
        stage = self._work.stage(step - 1).start
        compiles = stage != self._compiled
        self._compiled = stage
        if compiles:
            self._clock.lap("trace", compile=self._clock.compiled, data=waited)
        else:
            self._clock.lap("step", data=waited)
        self._stopwatch.waited(waited)
        self.flush()
        self._pending, self._step = (step, metrics), step
        if self._time is not None:
            self._time.write_in_time(step - 1)

    @property
    def state(self) -> dict[str, Any]:
        """The number of rows, and the metrics of the steps read since the last row."""
        rows = 0 if self._files is None else self._files.num_rows
        return {"rows": rows, "unlogged": list(self._rows)}

    def flush(self) -> None:
        """Waits for the pending step and reads its metrics."""
        if self._pending is None:
            return
        (step, metrics), self._pending = self._pending, None
        row = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self._rows.append(row)
        self._step_done(step)
        if row["skipped_in_a_row"] >= self._settings.max_nonfinite_steps:
            raise TrainingDiverged(_diverged(step, row, self._rows))
        if step % self._settings.log_interval == 0 or step == self._settings.steps:
            self._write_row(step)

    def _step_done(self, step: int) -> None:
        """Counts the time of a step; the first of a shape reports it, with its compilation."""
        stage = self._work.stage(step - 1)
        is_first = stage.start != self._stage
        self._stage = stage.start
        seconds = self._stopwatch.step_done(stage, counts=not is_first)
        if is_first:
            shape = f" of {stage.batch_text} tokens" if len(self._work.stages) > 1 else ""
            self.message(f"first step{shape} after {duration(seconds)}")

    @contextlib.contextmanager
    def paused(self, part: str) -> Iterator[Callable[[], float]]:
        """Context manager for work that counts as `part` instead of training; yields a clock."""
        self.flush()
        self._switch_to(part)
        started = time.perf_counter()
        yield lambda: time.perf_counter() - started
        self._stopwatch.pause(time.perf_counter() - started)
        self._switch_to("step", writes=True)

    def conclude_steps(self) -> None:
        """Uploads the logs once all checkpoints are saved; evaluation follows."""
        self._at = "save"
        self._switch_to("evaluation", writes=True)
        self.push()

    def _switch_to(self, part: str, writes: bool = False) -> None:
        """Switches to another part of the wall time; writes a row if `writes` or if steps begin."""
        before, self._at = self._at, part
        self._clock.lap(before)
        if self._time is not None and (writes or before == "start"):
            self._time.write(self._step)

    def validation(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Records an evaluation and the time it took."""
        if self._files is not None:
            self._files.write("validation", step, values)
        self.message(f"step {step}: validation {format_metrics(values)} ({duration(seconds)})")

    def sample(self, step: int, text: str) -> None:
        """Records a generated text."""
        if self._files is not None:
            self._files.write_text("sample", step, text)

    def message(self, text: str) -> None:
        """Shows a line."""
        self._progress.message(text)

    def end_display(self) -> None:
        """Ends the progress display, so that other output can be printed."""
        self._progress.close()

    def conclude(self, step: int, metrics: Mapping[str, float], picture: Path | None) -> None:
        """Sends the final metrics and the loss curve, if any, to the loggers."""
        if self._files is not None:
            self._files.conclude(step, metrics, picture)

    def close(self) -> None:
        """Ends the progress display and closes the files."""
        self._progress.close()
        if self._files is not None:
            self._files.close()
        if self._time is not None:
            self._clock.lap(self._at)
            self._time.close(self._step)
        self._logs.close()

    def _write_row(self, step: int) -> None:
        names = [name for name in self._rows[-1] if name not in (*_AVERAGED, *_LAST, _COUNTER)]
        means = {
            name: _mean([row[name] for row in self._rows if name in row])
            for name in (*_AVERAGED, *names)
        }
        last = {name: self._rows[-1][name] for name in _LAST}
        seen = {"tokens_seen": self._work.tokens(step)}
        values = means | last | seen | self._stopwatch.read() | device_memory(jax.local_devices())
        self._rows = []
        if self._files is not None:
            self._files.write("train", step, values)
        self._progress.update(step, values)


def format_metrics(values: Mapping[str, float]) -> str:
    """Formats metrics for display: "loss 1.234, entity f1 0.8, precision 0.75, recall 0.86".

    A prefix that a name shares with the previous one, such as a head's name, is not repeated.
    """
    parts, before = [], []
    for name, value in values.items():
        words = name.split("_")
        pairs = zip(before, words[:-1], strict=False)
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        parts.append(f"{' '.join(words[known:])} {value:.4g}")
        before = words
    more = [f"and {len(parts) - _MOST_IN_WORDS} more"] if len(parts) > _MOST_IN_WORDS else []
    return ", ".join([*parts[:_MOST_IN_WORDS], *more])


def _mean(values: list[float]) -> float:
    """Returns the mean of the finite values, ignoring skipped steps."""
    finite = [value for value in values if np.isfinite(value)]
    return sum(finite) / len(finite) if finite else float("nan")


def _diverged(step: int, row: Mapping[str, float], rows: list[Mapping[str, float]]) -> str:
    finite = [item["loss"] for item in rows if np.isfinite(item["loss"])]
    before = f" (the last finite loss was {finite[-1]:.3f})" if finite else ""
    return (
        f"Stopped after step {step}: {int(row['skipped_in_a_row'])} consecutive updates had a "
        f"non-finite loss or gradient{before}. None of them changed the parameters, and the last "
        f"checkpoint is kept. {_ADVICE}"
    )


class LogFolder:
    """The folder of a run's logs, which is the run's folder unless that is in an object store.

    Args:
        folder: The run's folder.
        continues: Whether to continue the existing logs; true on the first process.
    """

    def __init__(self, folder: AnyPath, continues: bool):
        self.path = folder
        self._remote, self._uploaded = None, {}
        if not is_remote(folder):
            return
        self._remote = folder
        self._scratch = Path(tempfile.mkdtemp(prefix="jaxformer-logs-"))
        self.path = self._scratch / folder.name
        self.path.mkdir()
        if continues:
            self._fetch()
        self._pushing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._push_regularly, daemon=True)
        self._thread.start()

    def push(self) -> None:
        """Uploads changed files; does nothing for a local run."""
        if self._remote is None:
            return
        with self._pushing:
            for file in sorted(self.path.rglob("*")):
                if file.is_file() and not file.is_symlink():
                    self._push_file(file)

    def close(self) -> None:
        """Uploads the last changes and removes the local copies; warns of a lost connection."""
        if self._remote is None:
            return
        self._stop.set()
        self._thread.join()
        try:
            self.push()
        except StorageError as error:
            _log.warning("the last logs of %s are in %s: %s", self._remote, self.path, error)
        else:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _fetch(self) -> None:
        """Downloads the existing logs."""
        for name in self._remote.files() if self._remote.exists() else ():
            if name.startswith(METRICS_FILE) or name in (WANDB_ID, WALL_TIME_FILE):
                (self._remote / name).get(self.path / name)
                self._uploaded[name] = _version(self.path / name)

    def _push_file(self, file: Path) -> None:
        name = file.relative_to(self.path).as_posix()
        with suppress(FileNotFoundError):  # a logger's temporary file that disappeared
            version = _version(file)
            if self._uploaded.get(name) != version:
                (self._remote / name).put(file)
                self._uploaded[name] = version

    def _push_regularly(self) -> None:
        while not self._stop.wait(INTERVAL):
            try:
                self.push()
            except StorageError as error:
                _log.warning("%s; retrying in %g s", error, INTERVAL)


def _version(file: Path) -> tuple[int, int]:
    """Returns a value that changes when a file is written to."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns
