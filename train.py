"""Trains an experiment, or continues it: python train.py configs/NAME.py [--train.steps 300 ...].

``--help`` after the file lists every option. The run goes to runs/NAME unless --run-dir says
otherwise; the same command, given again, continues where the last checkpoint left off.
"""

import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.interruption import quitting_on_interrupt

logging.basicConfig(format="%(levelname)s: %(message)s")  # before a library does it
with quitting_on_interrupt():
    from jaxformer.cli import main as cli
    from jaxformer.config import Config, load_config
    from jaxformer.config.overrides import parse
    from jaxformer.distributed.join import DistributedConfig, join, make_cpu_devices
    from jaxformer.errors import ConfigError
    from jaxformer.training.loop import train


@dataclass(frozen=True)
class Launch(Config):
    """An experiment, where it goes and which processes share it."""

    run_dir: Path | None = None
    """The run's folder (default: runs/NAME)."""
    fresh: bool = False
    """Start anew; an earlier run in the folder is kept under another name."""
    job: DistributedConfig = dataclasses.field(default_factory=DistributedConfig)
    """The processes that train together."""

    @property
    def experiment(self) -> Config:
        """The experiment alone."""
        parts = [field.name for field in dataclasses.fields(Config)]
        return Config(**{name: getattr(self, name) for name in parts})


def main(arguments: list[str]) -> None:
    """Parses the command line, starts the devices and trains."""
    if not arguments or arguments[0].startswith("-"):
        known = ", ".join(sorted(str(path) for path in Path("configs").glob("*.py")))
        if arguments and arguments[0] in ("-h", "--help"):
            print(f"{__doc__}\nExperiments: {known}")
            return
        raise ConfigError(f"name an experiment first: python train.py FILE.py. There are {known}.")
    name, *options = arguments
    loaded = load_config(name)
    launch = parse(Launch(**vars(loaded)), options, prog=f"python train.py {name}")
    processes = join(launch.job)
    make_cpu_devices(launch.mesh, processes)
    path, _, argument = name.partition(":")
    run = Path(path).stem + (f"-{argument}" if argument else "")
    train(launch.experiment, launch.run_dir or Path("runs", run), launch.fresh)


if __name__ == "__main__":
    sys.exit(cli.reporting_errors(lambda: main(sys.argv[1:])))
