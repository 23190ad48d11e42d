"""``jaxformer train CONFIG``: trains a model, or continues its run."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.options import split_subject
from jaxformer.config.experiment import Config, load_config
from jaxformer.config.overrides import given, parse, without
from jaxformer.config.shipped import config_spec, shipped_names
from jaxformer.distributed.join import DistributedConfig, join, make_cpu_devices
from jaxformer.training import loop
from jaxformer.training.transfer.resolution import resolved

_DESCRIPTION = """\
Trains the model that a config describes. CONFIG is the name of a config that comes with jaxformer
(tiny_decoder, bert:base) or the path of a Python file (configs/tiny_decoder.py); what follows a
colon is the argument of its get_config, such as a size. Options change the fields of the config:
--train.steps 300. `{prog} CONFIG --help` lists them.

The run goes to runs/NAME unless --run-dir says otherwise. The same command, given again, continues
from the last checkpoint.

Configs: {names}"""


@dataclass(frozen=True)
class Launch(Config):
    """Trains a model, or continues its run."""

    run_dir: Path | None = None
    """The run's folder (default: runs/NAME)."""
    fresh: bool = False
    """Start a new run; an earlier run in the folder is kept under another name."""
    job: DistributedConfig = dataclasses.field(default_factory=DistributedConfig)
    """The processes that train together."""

    @property
    def experiment(self) -> Config:
        """The experiment alone."""
        parts = [field.name for field in dataclasses.fields(Config)]
        return Config(**{name: getattr(self, name) for name in parts})


def train(arguments: Sequence[str], prog: str = "jaxformer train") -> None:
    """Trains the experiment that a command line describes."""
    description = _DESCRIPTION.format(prog=prog, names=", ".join(shipped_names()))
    name, options = split_subject(
        arguments, "an experiment", f"{prog} CONFIG [OPTION ...]", description
    )
    launch = Launch(**vars(load_config(config_spec(name))))
    launch = parse(_with_model(launch, options, prog), options, f"{prog} {name}")
    processes = join(launch.job)
    make_cpu_devices(launch.mesh, processes)
    path, _, argument = name.partition(":")
    run = Path(path).stem + (f"-{argument}" if argument else "")
    loop.train(launch.experiment, launch.run_dir or Path("runs", run), launch.fresh)


def _with_model(launch: Launch, options: Sequence[str], prog: str) -> Launch:
    """The defaults with the checkpoint's model, where that is what the options change."""
    if launch.model is not None or "model" in given(options):
        return launch
    asks_help = "--help" in options or "-h" in options
    first = parse(launch, without(options, "model", "help"), prog)
    config = resolved(first.experiment, labels_needed=not asks_help)
    return dataclasses.replace(launch, model=config.model)
