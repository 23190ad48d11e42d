"""The runs of the GLUE benchmark: the recipe of each task with the user's changes."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from jaxformer.config.experiment import Config
from jaxformer.data.tasks.glue import GlueFolder
from jaxformer.data.tasks.glue_tasks import TASKS, task_name
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.components import with_values
from jaxformer.io.paths import AnyPath, any_path

Recipe = Callable[[str], Config]
"""Returns the published experiment of a task."""


class GlueRun(NamedTuple):
    """A run of one task."""

    task: str
    learning_rate: float
    seed: int
    config: Config
    folder: Path


@dataclass(frozen=True)
class GluePlan:
    """The tasks, the initial model, and changes to the recipes."""

    init_from: str
    """The model that every run starts from."""
    data: str
    """The folder with the tasks' folders."""
    run_dir: AnyPath
    """The output folder of all runs."""
    tasks: tuple[str, ...]
    learning_rates: tuple[float, ...] = ()
    """Peak learning rates, of which the best is chosen per task; empty uses the recipe's."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; the median over seeds is reported."""
    epochs: float | None = None
    """Number of epochs; None uses the recipe's."""
    batch_size: int | None = None
    """Batch size in rows; None uses the recipe's."""
    max_length: int | None = None
    """Maximum number of tokens of a row; None uses the recipe's."""

    def check_files(self) -> None:
        """Checks that the files of all tasks exist and are readable before training starts."""
        if not any_path(self.data, "--data").is_dir():
            raise DataError(
                f"--data {self.data}: must be the folder with the GLUE data, but does not exist"
            )
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
        given = {"data.batch_size": self.batch_size, "data.sequence_length": self.max_length}
        given = {name: value for name, value in given.items() if value is not None}
        given |= {"init_from": self.init_from, "data.folder": self.data}
        if self.epochs is not None:
            given |= {"train.steps": None, "train.epochs": self.epochs}
        config = with_values(recipe(task), given)
        rates = self.learning_rates or (config.optimizer.schedule.learning_rate,)
        found = []
        for rate, seed in product(rates, self.seeds):
            named = f"-lr{rate:g}" * (len(rates) > 1) + f"-seed{seed}" * (len(self.seeds) > 1)
            values = {"optimizer.schedule.learning_rate": rate}
            values |= {"data.seed": seed, "train.seed": seed}
            config = changed(with_values(config, values))
            found.append(GlueRun(task, rate, seed, config, self.run_dir / f"{task}{named}"))
        return found


def _read_evaluated(files: GlueFolder) -> None:
    """Checks the files that are only used after training: further development and test files."""
    for split in files.task.dev[1:]:
        files.rows(split)
    for split in filter(files.files, files.task.test):
        files.query_rows(split)


def chosen_tasks(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of tasks, or "all"; returns them in GLUE's order."""
    if text.strip().lower() == "all":
        return tuple(TASKS)
    chosen = {task_name(name) for name in text.split(",") if name.strip()}
    if not chosen:
        raise ConfigError(f"--tasks {text!r}: must be all, or some of {', '.join(TASKS)}")
    return tuple(task for task in TASKS if task in chosen)
