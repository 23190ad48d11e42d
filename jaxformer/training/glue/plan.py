"""The runs that GLUE takes: the recipe of each task, with what a user asks for besides."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from jaxformer.config.experiment import Config
from jaxformer.data.tasks.glue import GlueFolder
from jaxformer.data.tasks.glue_tasks import TASKS, task_name
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.paths import AnyPath, any_path

Recipe = Callable[[str], Config]
"""Gives the published experiment of a task."""


class GlueRun(NamedTuple):
    """A run of one task."""

    task: str
    learning_rate: float
    seed: int
    config: Config
    folder: Path


@dataclass(frozen=True)
class GluePlan:
    """Which tasks are trained from what, and what differs from their recipes."""

    init_from: str
    """The model that every run starts from."""
    data: str
    """The folder with the tasks' folders."""
    run_dir: AnyPath
    """The folder of all runs."""
    tasks: tuple[str, ...]
    """The tasks."""
    learning_rates: tuple[float, ...] = ()
    """Peak learning rates, of which the best for each task counts; none: the recipe's."""
    seeds: tuple[int, ...] = (0,)
    """Seeds, whose median counts."""
    epochs: float | None = None
    """Epochs; None: the recipe's."""
    batch_size: int | None = None
    """Rows of a step; None: the recipe's."""
    max_length: int | None = None
    """The most tokens of a row; None: the recipe's."""

    def check_files(self) -> None:
        """Checks that all tasks' files are there and can be read, before anything is trained."""
        if not any_path(self.data, "--data").is_dir():
            raise DataError(f"--data {self.data}: must be the folder with GLUE's; there is none")
        missing = {task: GlueFolder(self.data, TASKS[task]).missing() for task in self.tasks}
        lacking = {task: files for task, files in missing.items() if files}
        if not lacking:
            for task in self.tasks:
                _read_evaluated(GlueFolder(self.data, TASKS[task]))
            return
        listed = "".join(f"\n  {task}: {', '.join(files)}" for task, files in lacking.items())
        whole = [task for task in self.tasks if task not in lacking]
        advice = f", or leave them out: --tasks {','.join(whole)}" if whole else ""
        raise DataError(f"files of GLUE are missing:{listed}\nPut them there{advice}")

    def runs(self, task: str, recipe: Recipe, changed: Callable[[Config], Config]) -> list[GlueRun]:
        """Returns the runs of a task."""
        config = recipe(task)
        given = {"batch_size": self.batch_size, "sequence_length": self.max_length}
        given = {name: value for name, value in given.items() if value is not None}
        data = dataclasses.replace(config.data, folder=self.data, **given)
        train = config.train
        if self.epochs is not None:
            train = dataclasses.replace(train, steps=None, epochs=self.epochs)
        config = dataclasses.replace(config, init_from=self.init_from, data=data, train=train)
        rates = self.learning_rates or (config.optimizer.schedule.learning_rate,)
        found = []
        for rate, seed in product(rates, self.seeds):
            named = f"-lr{rate:g}" * (len(rates) > 1) + f"-seed{seed}" * (len(self.seeds) > 1)
            config = changed(_with_seed(_with_rate(config, rate), seed))
            found.append(GlueRun(task, rate, seed, config, self.run_dir / f"{task}{named}"))
        return found


def _read_evaluated(files: GlueFolder) -> None:
    """Reads what is read only after training: further development files and the test files."""
    for split in files.task.dev[1:]:
        files.rows(split)
    for split in filter(files.files, files.task.test):
        files.query_rows(split)


def _with_rate(config: Config, rate: float) -> Config:
    schedule = dataclasses.replace(config.optimizer.schedule, learning_rate=rate)
    return dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, schedule=schedule)
    )


def _with_seed(config: Config, seed: int) -> Config:
    data = dataclasses.replace(config.data, seed=seed)
    return dataclasses.replace(
        config, data=data, train=dataclasses.replace(config.train, seed=seed)
    )


def chosen_tasks(text: str) -> tuple[str, ...]:
    """Returns the tasks that a list between commas names, in GLUE's order; "all" names all."""
    if text.strip().lower() == "all":
        return tuple(TASKS)
    chosen = {task_name(name) for name in text.split(",") if name.strip()}
    if not chosen:
        raise ConfigError(f"--tasks {text!r}: must be all, or some of {', '.join(TASKS)}")
    return tuple(task for task in TASKS if task in chosen)
