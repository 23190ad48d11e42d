"""``jaxformer train CONFIG``: trains a model, or continues its run."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jaxformer.checkpoints.run_dir import CONFIG_FILE, read_config
from jaxformer.cli.options import part_of, split_config
from jaxformer.config.experiment import Config, check_has_model, load_config
from jaxformer.config.options import given, without
from jaxformer.config.overrides import parse
from jaxformer.config.shipped import config_spec
from jaxformer.distributed.compiled import keep_compiled
from jaxformer.distributed.join import DistributedConfig, join, make_cpu_devices
from jaxformer.io.components import with_values
from jaxformer.io.paths import any_path
from jaxformer.training import loop
from jaxformer.training.logging.wall_time import process_began
from jaxformer.training.resolve import fill

_TIMES_FOR_ADAPTERS = 10
_DESCRIPTION = """\
Trains the model of a config. CONFIG is the name of a shipped config (tiny_decoder, bert:base) or
the path of a Python file (configs/tiny_decoder.py); an argument of its get_config, such as a size,
follows a colon. Options change the fields of the config: --train.steps 300. `{prog} CONFIG --help`
lists them.

The run is written to runs/NAME unless --run-dir is given. Rerun the same command to continue from
the last checkpoint. Adapters (--train.lora LoRA) use ten times the config's learning rate unless
--optimizer.schedule.learning-rate is given.

Configs: {names}"""


@dataclass(frozen=True)
class Launch(Config):
    """Trains a model, or continues its run."""

    run_dir: Path | None = None
    """The run's folder (default: runs/NAME)."""
    fresh: bool = False
    """Start a new run; an earlier run in the folder is renamed."""
    job: DistributedConfig = dataclasses.field(default_factory=DistributedConfig)
    """The processes of the job."""

    @property
    def experiment(self) -> Config:
        """The experiment without the other options."""
        return part_of(Config, self)


L = TypeVar("L", bound=Launch)


def train(arguments: Sequence[str], prog: str = "jaxformer train") -> int:
    """Trains the configured experiment; returns the exit status."""
    launch = launched(Launch, arguments, prog, _DESCRIPTION, _start)
    keep_compiled()
    result = loop.train(launch.experiment, launch.run_dir, launch.fresh, began=process_began())
    return 0 if result.finished else launch.job.stopped_status


def launched(
    kind: type[L],
    arguments: Sequence[str],
    prog: str,
    description: str,
    start: Callable[[Launch], None],
) -> L:
    """Parses a command line that names an experiment and changes its fields.

    `start` is called once, before a checkpoint is opened.
    """
    name, options = split_config(arguments, prog, description)
    path, _, argument = name.partition(":")
    run = Path("runs", Path(path).stem + (f"-{argument}" if argument else ""))
    defaults = _with_epochs(kind(**vars(load_config(config_spec(name)))), options)
    defaults = _with_rate_of_adapters(defaults, options, prog, run)
    takes_model = defaults.model is None and "model" not in given(options)
    if takes_model:
        defaults = _with_model(defaults, options, prog, run, start)
    launch = parse(defaults, options, f"{prog} {name}")
    if not takes_model:
        start(launch)
    return dataclasses.replace(launch, run_dir=launch.run_dir or run)


def _start(launch: Launch) -> None:
    """Joins the processes of the job and creates the devices before JAX does so implicitly."""
    make_cpu_devices(launch.mesh, join(launch.job))


def _with_epochs(launch: L, options: Sequence[str]) -> L:
    """Clears the default number of steps if the options set epochs instead."""
    named = given(options)
    if "train.epochs" not in named or "train.steps" in named:
        return launch
    epochs = launch.train.epochs or 1.0
    return with_values(launch, {"train.steps": None, "train.epochs": epochs})


def _with_rate_of_adapters(launch: L, options: Sequence[str], prog: str, run: Path) -> L:
    """Multiplies the default learning rate by ten if the options enable adapters."""
    named = given(options)
    if not any(name.startswith("train.lora") for name in named) or not named.isdisjoint(
        {"optimizer", "optimizer.schedule", "optimizer.schedule.learning_rate"}
    ):
        return launch
    first = parse(launch, without(options, "model", "help"), prog)
    if first.train.lora is None or launch.train.lora is not None:
        return launch
    rate = _TIMES_FOR_ADAPTERS * launch.optimizer.schedule.learning_rate
    folder = any_path(first.run_dir or run, "run_dir")
    # A run of an earlier version keeps the config's learning rate.
    if not first.fresh and (folder / CONFIG_FILE).is_file():
        rate = read_config(folder).optimizer.schedule.learning_rate
    return with_values(launch, {"optimizer.schedule.learning_rate": rate})


def _with_model(
    launch: L, options: Sequence[str], prog: str, run: Path, start: Callable[[Launch], None]
) -> L:
    """Returns the defaults with the checkpoint's model, which model options can change."""
    asks_help = "--help" in options or "-h" in options
    first = parse(launch, without(options, "model", "help"), prog)
    if not asks_help:
        if first.init_from is None:
            check_has_model(first)
        start(first)
    folder = None if first.fresh else first.run_dir or run
    filled = fill(first.experiment, folder, labels_needed=not asks_help)
    return dataclasses.replace(launch, model=filled.config.model)
