"""Loggers that show the metrics of a run in addition to metrics.jsonl: TensorBoard and W&B."""

import abc
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError, first_line
from jaxformer.extras import check_installed, optional_module
from jaxformer.io.files import write_text

WANDB_ID = "wandb_run_id"
"""The file in a run's folder with the id of its W&B run."""
_log = logging.getLogger(__name__)


class LoggedRun(NamedTuple):
    """The run that a logger reports."""

    folder: Path
    """Its folder."""
    step: int
    """The step that training starts from; metrics of later steps are logged again."""
    config: Mapping[str, Any]
    """The configuration as JSON."""


class RunWriter(abc.ABC):
    """Writes the metrics of a run to a logging service."""

    @abc.abstractmethod
    def scalars(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Logs a row of metrics of the "train" or "validation" split."""

    @abc.abstractmethod
    def text(self, name: str, step: int, text: str) -> None:
        """Logs a text, such as a sample."""

    @abc.abstractmethod
    def conclude(self, step: int, metrics: Mapping[str, float], picture: Path | None) -> None:
        """Logs the final metrics and the loss curve, if any."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flushes pending data and closes the writer."""


@dataclass(frozen=True)
class Logger(abc.ABC):
    """Base class of loggers, which show the metrics of runs; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises MissingExtra if the library is not installed."""

    @abc.abstractmethod
    def open(self, run: LoggedRun) -> RunWriter:
        """Returns a writer for a run, which may have been logged before."""


@dataclass(frozen=True)
class TensorBoard(Logger):
    """Event files in RUN/tensorboard: tensorboard --logdir RUN."""

    def check(self):
        check_installed("tensorboardX", "train.loggers = TensorBoard()")

    def open(self, run):
        return _TensorBoardWriter(run)


class _TensorBoardWriter(RunWriter):
    def __init__(self, run: LoggedRun):
        with _hidden("torch", "boto3", "google.cloud.storage"):
            from tensorboardX import SummaryWriter

        self._events = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.step + 1)

    def scalars(self, split, step, values):
        for name, value in values.items():
            self._events.add_scalar(f"{split}/{name}", float(value), step)

    def text(self, name, step, text):
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        self._events.add_text(name, indented, step)

    def conclude(self, step, metrics, picture):
        """Does nothing: TensorBoard draws the curves itself."""

    def close(self):
        self._events.close()


@contextlib.contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Makes optional modules, whose import takes seconds, appear uninstalled to a library."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@dataclass(frozen=True)
class WeightsAndBiases(Logger):
    """Weights & Biases: metrics, the configuration, samples, the loss curve.

    Continuing a run also continues its W&B run, whose id is stored in RUN/wandb_run_id. If W&B
    cannot be reached, a warning is logged and training continues.
    """

    project: str = "jaxformer"
    """The project."""
    name: str | None = None
    """The name of the W&B run; None uses the name of the folder."""
    entity: str | None = None
    """The user or team; None uses the default of `wandb login`."""
    group: str | None = None
    """The group of runs that the run belongs to, such as a sweep."""
    tags: tuple[str, ...] = ()
    """Tags."""
    mode: Literal["online", "offline", "disabled"] = "online"
    """offline: keep everything in RUN/wandb, for `wandb sync`."""

    def __post_init__(self):
        check_types(self)

    def check(self):
        check_installed("wandb", "train.loggers = WeightsAndBiases()")

    def open(self, run):
        return _WandbWriter(self, run)


class _WandbWriter(RunWriter):
    def __init__(self, logger: WeightsAndBiases, run: LoggedRun):
        self._wandb = optional_module("wandb", "train.loggers = WeightsAndBiases()")
        file = run.folder / WANDB_ID
        known = file.read_text(encoding="utf-8").strip() if file.exists() else None
        settings = self._wandb.Settings(silent=True, console="off", init_timeout=60)
        self._run = self._wandb.init(
            project=logger.project,
            name=logger.name or run.folder.name,
            entity=logger.entity,
            group=logger.group,
            tags=logger.tags,
            mode=logger.mode,
            dir=str(run.folder),
            config=dict(run.config),
            id=known,
            resume="allow",
            allow_val_change=True,
            reinit="create_new",
            settings=settings,
        )
        if known is None:
            write_text(file, self._run.id + "\n")
        # Uses an explicit step: a killed run logs the steps after its last checkpoint again.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, split, step, values):
        named = {f"{split}/{name}": float(value) for name, value in values.items()}
        self._run.log({"step": step, **named})

    def text(self, name, step, text):
        table = self._wandb.Table(columns=["step", "text"], data=[[step, text]])
        self._run.log({"step": step, name: table})

    def conclude(self, step, metrics, picture):
        self._run.summary.update({f"final/{name}": float(v) for name, v in metrics.items()})
        if picture is not None:
            self._run.log({"step": step, "loss": self._wandb.Image(str(picture))})

    def close(self):
        self._run.finish()


class Guarded(RunWriter):
    """A writer that turns failures into warnings, so that a logger cannot stop a run."""

    def __init__(self, logger: Logger, run: LoggedRun):
        self._name, self._warned = type(logger).__name__, False
        self._writer: RunWriter | None = None
        self._try("start", lambda: setattr(self, "_writer", logger.open(run)))

    def scalars(self, split, step, values):
        self._try("log metrics", lambda: self._writer.scalars(split, step, values))

    def text(self, name, step, text):
        self._try("log a text", lambda: self._writer.text(name, step, text))

    def conclude(self, step, metrics, picture):
        self._try("log the end", lambda: self._writer.conclude(step, metrics, picture))

    def close(self):
        self._try("finish", lambda: self._writer.close())

    def _try(self, what: str, action: Callable[[], object]) -> None:
        if self._writer is None and what != "start":
            return
        try:
            action()
        except Exception as error:  # a service or its library can raise anything
            if not self._warned:
                _log.warning(
                    "%s could not %s (%s); training continues, and metrics.jsonl is complete",
                    self._name,
                    what,
                    first_line(error),
                )
            self._warned = True


def check_loggers(loggers: tuple[Logger, ...]) -> None:
    """Checks that loggers can be used together, and that their libraries are installed."""
    kinds = [type(logger).__name__ for logger in loggers]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"train.loggers = {', '.join(kinds)}: must be distinct")
    for logger in loggers:
        logger.check()
