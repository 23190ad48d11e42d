"""The commands besides training: ``python -m jaxformer COMMAND``; and how errors are reported."""

import argparse
import dataclasses
import errno
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from jaxformer.checkpoints import checkpointer as checkpoint
from jaxformer.checkpoints import files as checkpoint_files
from jaxformer.checkpoints import manifest
from jaxformer.checkpoints import run_dir as run_folder
from jaxformer.checkpoints import select as choice
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.cli.doctor import add_doctor
from jaxformer.cli.evaluate import add_evaluate
from jaxformer.cli.generate import add_chat, add_generate
from jaxformer.cli.hub import add_export, add_forward, add_import, add_parity, add_verify
from jaxformer.distributed.join import leave
from jaxformer.errors import ArgumentError, ConfigError, DataError, system_message
from jaxformer.io.paths import check_local_paths
from jaxformer.io.serialization import summary
from jaxformer.training.evaluation.early_stopping import cost
from jaxformer.training.failures import OF_DEVICES, OutOfMemory, ProcessLost, out_of_memory
from jaxformer.training.logging.plot import curve, plot_comparison
from jaxformer.training.logging.report import print_pairs
from jaxformer.training.logging.run_logger import TrainingDiverged, in_words
from jaxformer.training.transfer.merge import merge
from jaxformer.zoo import SYSTEMS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxformer",
        description="Works with trained models. To train one: python train.py configs/NAME.py",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_inspect(commands)
    add_evaluate(commands)
    add_merge(commands)
    add_compare(commands)
    add_zoo(commands)
    add_doctor(commands)
    add_generate(commands)
    add_chat(commands)
    for add in (add_import, add_forward, add_export, add_verify, add_parity):
        add(commands)

    def run():
        options = parser.parse_args(arguments)
        check_local_paths(vars(options))
        options.run(options)

    return reporting_errors(run)


def reporting_errors(action: Callable[[], object]) -> int:
    """Runs an action; an error that a user can cause becomes one message instead of a traceback.

    In a job of several processes, one that fails ends here and at once: see `launch.leave`.

    Returns:
        0 for success, 2 for an argument, a configuration or data that cannot work, 1 for a run that
        had to stop, 130 for Ctrl-C.
    """
    # Orbax logs warnings and tracebacks where this package reports a sentence.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        status = _status(action)
    except Exception as error:
        error.add_note(
            "This is a bug in jaxformer, unless it comes from a file of yours: please report it "
            "with the lines above."
        )
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exception(error)
        status = 1
    return leave(status)


def _status(action: Callable[[], object]) -> int:
    """Runs an action; prints the message of an error, and returns the exit status."""
    try:
        action()
        sys.stdout.flush()
    except (ArgumentError, DataError) as error:
        return _fail(error, 2)
    except (checkpoint.CheckpointError, TrainingDiverged, OutOfMemory, ProcessLost) as error:
        return _fail(error, 1)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        return _drop_output(1)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = " What was saved before is kept: free some space and go on." if full else ""
        return _drop_output(_fail(f"{system_message(error)}.{advice}", 1))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (MemoryError, *OF_DEVICES) as error:
        if not out_of_memory(error):
            raise
        reason = checkpoint.first_line(error)
        return _fail(f"out of memory ({reason}): take fewer or shorter rows at a time", 1)
    return 0


def _drop_output(status: int) -> int:
    """Lets go of what is still buffered where it has nowhere to go; returns the status."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def add_inspect(commands: Any) -> None:
    """Adds ``inspect RUN_DIR``."""
    parser = commands.add_parser(
        "inspect",
        help="what a run's folder holds: steps, configuration, parameters, content hash",
        description="Shows the checkpoints of a run, its configuration and the size of its model, "
        "and hashes the parameters and the optimizer state bit for bit.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--step", type=int, help="the checkpoint to look at (default: the newest)")
    parser.set_defaults(run=inspect)


def inspect(options: argparse.Namespace) -> None:
    """Prints what a run's folder holds."""
    jax.config.update("jax_platforms", "cpu")  # reading needs no accelerator, which may be busy
    run = run_folder.RunConfig(options.run_dir)
    config = run.config
    folder = (options.run_dir / run_folder.CHECKPOINTS).absolute()
    steps = checkpoint_files.saved_steps(folder)
    problems = {step: manifest.damage(folder / str(step)) for step in steps}
    whole = [step for step in steps if problems[step] is None]
    rows = [("steps held", ", ".join(map(str, whole)) or "none")]
    rows += [(f"step {step} is damaged", problem) for step, problem in problems.items() if problem]
    if options.step is not None and options.step not in whole:
        raise ConfigError(f"--step {options.step}: {folder} holds {rows[0][1]}")
    if whole:
        step = whole[-1] if options.step is None else options.step
        choice.saved_config(run, step)
        rows += _checkpoint_rows(folder, step, whole, config.train.metric)
    print_pairs([("run", options.run_dir), *rows, *_config_rows(config)])
    if not whole and (steps or checkpoint_files.damaged_ones(folder)):
        raise checkpoint.CheckpointError(f"Every checkpoint in {folder} is damaged")


def _checkpoint_rows(
    folder: Path, step: int, whole: list[int], metric: str
) -> list[tuple[str, str]]:
    metas = {item: manifest.read_item(folder / str(item), "meta") for item in whole}
    measured = {item: checkpoint_files.validation_of(meta) for item, meta in metas.items()}
    values = {item: metrics.get(metric) for item, metrics in measured.items()}
    best = checkpoint_files.best_step({k: cost(metric, v) for k, v in values.items()})
    words = metric.replace("_", " ")
    count = 0

    def counted():
        nonlocal count
        for name, array in read_arrays(folder / str(step), ("params/", "opt_state/")):
            count += array.size if name.startswith("params/") else 0
            yield name, array

    digest = checkpoint.content_hash(counted())
    return [
        ("best step", "not measured" if best is None else f"{best} ({words} {values[best]:.4f})"),
        ("validation", f"{in_words(measured[step]) or 'not measured'} at step {step}"),
        ("parameters", f"{count:,}"),
        ("content hash", f"{digest} (step {step})"),
    ]


def _config_rows(config: Any) -> list[tuple[str, str]]:
    """One row per part of the configuration."""
    parts = [field.name for field in dataclasses.fields(config)]
    return [(name, "\n".join(textwrap.wrap(summary(getattr(config, name)), 90))) for name in parts]


def add_merge(commands: Any) -> None:
    """Adds ``merge RUN_DIR OUT_DIR``."""
    parser = commands.add_parser(
        "merge",
        help="plain weights out of a run that trained low-rank factors (LoRA)",
        description="Multiplies out the low-rank factors of a run and writes a run folder with "
        "plain weights, which --init-from, evaluate and inspect read as any other.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="a new or an empty folder")
    parser.add_argument("--step", type=int, help="the checkpoint to take (default: the newest)")
    parser.set_defaults(run=_merge)


def _merge(options: argparse.Namespace) -> None:
    jax.config.update("jax_platforms", "cpu")
    print(merge(options.run_dir, options.out_dir, options.step).in_words())


def add_zoo(commands: Any) -> None:
    """Adds ``zoo``."""
    parser = commands.add_parser(
        "zoo",
        help="the published systems and their sizes",
        description="Lists the published systems: their family, positions, norm, how many "
        "parameters their authors give and this library makes, and the recipe that trains them "
        "(python train.py configs/bert.py:base).",
    )
    parser.set_defaults(run=zoo)


def zoo(options: argparse.Namespace) -> None:
    """Prints the table of published systems."""
    del options
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(box=None, pad_edge=False)
    for title in ("system", "family", "positions", "norm"):
        table.add_column(title, no_wrap=True)
    for title in ("published", "computed"):
        table.add_column(title, justify="right", no_wrap=True)
    if has_room := console.width >= 126:
        table.add_column("python train.py configs/...", no_wrap=True)
    for system in SYSTEMS.values():
        recipe = [system.recipe] if has_room else []
        table.add_row(
            system.name,
            system.family,
            type(system.config.position).__name__,
            f"{type(system.config.residual).__name__}, {type(system.config.norm).__name__}",
            system.published,
            f"{system.count_parameters():,}",
            *recipe,
        )
    console.print(table)
    print("\nWhere the two differ, the published number counts")
    for system in filter(lambda system: system.note, SYSTEMS.values()):
        print(f"  {system.name}: {system.note}")


def add_compare(commands: Any) -> None:
    """Adds ``compare RUN_DIR RUN_DIR ...``."""
    parser = commands.add_parser(
        "compare",
        help="the validation losses of several runs, as a table and as a picture",
        description="Compares runs by their validation losses.",
    )
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, default=Path("comparison.png"), help="the picture")
    parser.add_argument("--title", default="Comparison", help="its title")
    parser.set_defaults(run=compare)


def compare(options: argparse.Namespace) -> None:
    """Prints and draws the validation losses of several runs."""
    folders = {folder.name: folder for folder in options.run_dirs}
    measured = {name: curve(folder, "validation") for name, folder in folders.items()}
    for name, (steps, _) in measured.items():
        if not len(steps):
            raise ConfigError(f"{folders[name]} holds no validation loss: is it a run's folder?")
    final = [(losses[-1], name, steps[-1]) for name, (steps, losses) in measured.items()]
    rows = [(name, f"{loss:.4f} at step {step:.0f}") for loss, name, step in sorted(final)]
    print_pairs(rows)
    print(plot_comparison(folders, options.out, options.title))


def _fail(message: object, status: int) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)
    return status
