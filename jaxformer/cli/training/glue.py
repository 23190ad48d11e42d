"""``jaxformer glue``: fine-tunes a model on the tasks of GLUE, and reports the average."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax

from jaxformer.config.experiment import Config, load_config, validate
from jaxformer.config.overrides import parse
from jaxformer.config.shipped import config_spec
from jaxformer.distributed.join import DistributedConfig, join, make_cpu_devices
from jaxformer.distributed.processes import first_process_only, is_first
from jaxformer.errors import ConfigError
from jaxformer.io.paths import any_path, is_remote
from jaxformer.training import loop
from jaxformer.training.glue.measure import finished, measure
from jaxformer.training.glue.plan import GluePlan, GlueRun, chosen_tasks
from jaxformer.training.glue.summary import report, task_result
from jaxformer.training.resolve import fill

T = TypeVar("T")


@dataclass(frozen=True)
class Glue:
    """Fine-tunes a model on the tasks of GLUE, each with its published recipe.

    Each task is a run in a separate folder. At the end a table with GLUE's average (results.json,
    results.md) is written and, if the test files exist, the files to submit (submission/). Rerun
    the same command to continue after an interruption.

    The recipe is that of `jaxformer train glue:TASK`, whose other options apply to every task:
    --train.patience 2, --optimizer.weight-decay 0, --model.dropout 0.2, --mesh.data 4; `jaxformer
    train glue:cola --help` lists them.
    """

    init_from: str
    """The model: a Hugging Face checkpoint (its folder or hub name), a run, or one of its
    checkpoints.
    """
    data: Path
    """The folder with the tasks' folders: GLUE_DIR/CoLA/train.tsv, or
    GLUE_DIR/cola/train-00000-of-00001.parquet."""
    run_dir: Path = Path("runs/glue")
    """The output folder of all runs."""
    tasks: str = "all"
    """Comma-separated tasks: cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte,wnli."""
    learning_rate: str | None = None
    """The peak learning rate; if several are given (2e-5,3e-5,5e-5), the best on the development
    data is chosen per task (default: the recipe's).
    """
    epochs: float | None = None
    """Epochs per task (default: the recipe's)."""
    batch_size: int | None = None
    """Batch size in rows (default: the recipe's)."""
    max_length: int | None = None
    """Maximum tokens per row; longer rows are truncated (default: the recipe's)."""
    seeds: str = "0"
    """Comma-separated seeds; the median is reported, and the best run is submitted."""
    job: DistributedConfig = dataclasses.field(default_factory=DistributedConfig)
    """The processes of the job."""

    @property
    def plan(self) -> GluePlan:
        """The plan described by the options."""
        rates = self.learning_rate
        return GluePlan(
            init_from=self.init_from,
            data=str(any_path(self.data, "--data") if is_remote(self.data) else self.data),
            run_dir=any_path(self.run_dir, "--run-dir"),
            tasks=chosen_tasks(self.tasks),
            learning_rates=() if rates is None else _items(rates, float, "--learning-rate"),
            seeds=_items(self.seeds, int, "--seeds"),
            epochs=self.epochs,
            batch_size=self.batch_size,
            max_length=self.max_length,
        )


def glue(arguments: Sequence[str], prog: str) -> int:
    """Trains and measures the chosen tasks; returns the exit status."""
    own, others = _split(arguments)
    options = parse(Glue, own, prog)
    plan = options.plan
    plan.check_files()
    processes = join(options.job)

    def changed(config: Config) -> Config:
        return parse(config, others, prog)

    planned = {task: plan.runs(task, _recipe, changed) for task in plan.tasks}
    first = next(iter(planned.values()))[0].config
    make_cpu_devices(first.mesh, processes)
    planned = {task: _resolved(runs) for task, runs in planned.items()}
    for run in (run for runs in planned.values() for run in runs):
        if finished(run) is None:
            result = loop.train(run.config, run.folder)
            if not result.finished:
                return options.job.stopped_status
            first_process_only(lambda run=run, result=result: measure(run, result))
    if is_first():
        results = {
            task: task_result([(run, finished(run)) for run in runs])
            for task, runs in planned.items()
        }
        for file in report(results, plan.run_dir):
            print(f"written to {file}")
    return 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits arguments into options of the command and of the experiments (--train.steps 4)."""
    own, others = [], []
    side = own
    for word in arguments:
        if word.startswith("--"):
            name = word.partition("=")[0]
            side = others if "." in name and not name.startswith("--job.") else own
        side.append(word)
    return own, others


def _items(text: str, kind: Callable[[str], T], option: str) -> tuple[T, ...]:
    try:
        found = tuple(dict.fromkeys(kind(item) for item in text.split(",") if item.strip()))
    except ValueError:
        found = ()
    if not found:
        raise ConfigError(f"{option} {text!r}: must be comma-separated numbers")
    return found


def _recipe(task: str) -> Config:
    return load_config(config_spec(f"glue:{task}"))


def _resolved(runs: list[GlueRun]) -> list[GlueRun]:
    """Resolves and checks all runs before anything is trained."""
    found = [run._replace(config=fill(run.config, run.folder).config) for run in runs]
    for run in found:
        validate(run.config, jax.device_count())
    return found
