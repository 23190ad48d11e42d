"""The commands besides training: ``python -m jaxformer COMMAND``; and how errors are reported."""

import argparse
import dataclasses
import errno
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxformer.errors import ConfigError, DataError
from jaxformer.serialization import summary
from jaxformer.training import checkpoint, checkpoint_files, run_folder
from jaxformer.training.plot import curve, plot_comparison
from jaxformer.training.report import print_pairs
from jaxformer.training.restore import read_arrays
from jaxformer.training.run_log import TrainingDiverged


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxformer",
        description="Works with trained models. To train one: python train.py configs/NAME.py",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_inspect(commands)
    add_compare(commands)
    options = parser.parse_args(arguments)
    return reporting_errors(lambda: options.run(options))


def reporting_errors(action: Callable[[], object]) -> int:
    """Runs an action; an error that a user can cause becomes one message instead of a traceback.

    Returns:
        0 for success, 2 for a configuration or data that cannot work, 1 for a run that had to stop.
    """
    # Orbax logs warnings and tracebacks where this package reports a sentence.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        action()
    except (ConfigError, DataError) as error:
        return _fail(error, 2)
    except (checkpoint.CheckpointError, TrainingDiverged) as error:
        return _fail(error, 1)
    except BrokenPipeError:
        # The reader (head, less) has seen enough; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _fail(f"{error}. What was saved before is kept: free some space and go on.", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


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
    config = run_folder.read_config(options.run_dir)
    folder = (options.run_dir / run_folder.CHECKPOINTS).absolute()
    steps = checkpoint_files.saved_steps(folder)
    problems = {step: checkpoint_files.damage(folder / str(step)) for step in steps}
    whole = [step for step in steps if problems[step] is None]
    rows = [("steps held", ", ".join(map(str, whole)) or "none")]
    rows += [(f"step {step} is damaged", problem) for step, problem in problems.items() if problem]
    if options.step is not None and options.step not in whole:
        raise ConfigError(f"--step {options.step}: {folder} holds {rows[0][1]}")
    if whole:
        step = whole[-1] if options.step is None else options.step
        rows += _checkpoint_rows(folder, step, whole)
    print_pairs([("run", options.run_dir), *rows, *_config_rows(config)])


def _checkpoint_rows(folder: Path, step: int, whole: list[int]) -> list[tuple[str, str]]:
    metas = {item: checkpoint_files.read_item(folder / str(item), "meta") for item in whole}
    losses = {item: meta["validation_loss"] for item, meta in metas.items()}
    best = checkpoint_files.best_step(losses)
    count = 0

    def counted():
        nonlocal count
        for name, array in read_arrays(folder / str(step), ("params/", "opt_state/")):
            count += array.size if name.startswith("params/") else 0
            yield name, array

    digest = checkpoint.content_hash(counted())
    loss = losses[step]
    return [
        ("best step", "not measured" if best is None else f"{best} ({losses[best]:.4f})"),
        ("validation loss", f"{'not measured' if loss is None else f'{loss:.4f}'} at step {step}"),
        ("parameters", f"{count:,}"),
        ("content hash", f"{digest} (step {step})"),
    ]


def _config_rows(config: Any) -> list[tuple[str, str]]:
    """One row per part of the configuration."""
    parts = [field.name for field in dataclasses.fields(config)]
    return [(name, "\n".join(textwrap.wrap(summary(getattr(config, name)), 90))) for name in parts]


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
