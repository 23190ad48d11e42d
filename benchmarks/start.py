"""The time from the command `jaxformer train` to the end of its first step, by part.

Each start is a new process in a new folder: first without compiled programs, and then with those of
the first start. The parts are those of `jaxformer goodput`. `import jaxformer` and
`jaxformer --help` are timed as well. The first round, which reads files from the disk, does not
count.

    python benchmarks/start.py --output benchmarks/results/NAME.json
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import machine, seconds, write

from jaxformer.training.logging.wall_time import read_wall_time

PARTS = ("imports", "corpus", "start", "trace", "compile", "step")
COMMANDS = {
    "import jaxformer": ("-c", "import jaxformer"),
    "jaxformer --help": ("-m", "jaxformer", "--help"),
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--config", default="tiny_decoder", help="the config to train")
    options.add_argument("--rounds", type=int, default=3, help="starts of each kind")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    measured = [round_of_starts(arguments.config) for _ in range(1 + arguments.rounds)][1:]
    rows = {name: [each[name] for each in measured] for name in measured[0]}
    for name, each in rows.items():
        print(f"{name:20s} {statistics.median(sum(row.values()) for row in each):6.2f} s", end="")
        parts = {part: statistics.median(row[part] for row in each) for part in each[0]}
        print("  " + ", ".join(f"{part} {taken:.2f}" for part, taken in parts.items()))
    write(arguments.output, {"machine": machine(), "config": arguments.config, "rounds": rows})


def round_of_starts(config: str) -> dict[str, dict[str, float]]:
    """Seconds of each part of each command, once."""
    rows = {
        name: {"process": seconds(lambda command=command: python(command))}
        for name, command in COMMANDS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nothing compiled", "compiled before"):
            rows[name] = first_step(config, Path(folder, name), Path(folder, "programs"))
    return rows


def first_step(config: str, run: Path, programs: Path) -> dict[str, float]:
    """Seconds of each part of a run until its first step is done."""
    command = ("-m", "jaxformer", "train", config, "--train.steps", "1", "--run-dir", str(run))
    python(command, JAX_COMPILATION_CACHE_DIR=str(programs))
    last = read_wall_time(run)[-1].seconds
    return {part: last[part] for part in PARTS}


def python(command: Sequence[str], **variables: str) -> None:
    """Runs a command of Python, and shows its output only if it fails."""
    ended = subprocess.run(
        [sys.executable, *command], env=os.environ | variables, capture_output=True, text=True
    )
    if ended.returncode:
        sys.exit(ended.stderr)


if __name__ == "__main__":
    main()
