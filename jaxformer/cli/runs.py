"""``jaxformer inspect``, ``merge`` and ``compare``: what runs hold."""

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxformer.checkpoints import checkpointer, files, manifest, run_dir, select
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.cli.options import CheckpointChoice, OutDir, RunDir, RunDirs
from jaxformer.config.metric import cost
from jaxformer.config.overrides import parse
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.io.serialization import summary
from jaxformer.training.logging.plot import curve, plot_comparison
from jaxformer.training.logging.report import print_pairs
from jaxformer.training.logging.run_logger import in_words
from jaxformer.training.transfer import merge as lora


@dataclass(frozen=True)
class Inspect(CheckpointChoice):
    """Shows the checkpoints of a run, its config and the size of its model.

    Also hashes the parameters and the optimizer state: the same bits have the same hash.
    """

    run_dir: RunDir
    """The run's folder."""


def inspect(arguments: Sequence[str], prog: str) -> None:
    """Prints what a run's folder holds."""
    options = parse(Inspect, arguments, prog)
    jax.config.update("jax_platforms", "cpu")  # reading needs no accelerator, which may be busy
    home, wanted = select.run_and_step(options.run_dir, options.step, options.best)
    run = run_dir.RunConfig(home)
    config = run.config
    folder = (home / run_dir.CHECKPOINTS).absolute()
    steps = files.saved_steps(folder)
    problems = {step: manifest.damage(folder / str(step)) for step in steps}
    whole = [step for step in steps if problems[step] is None]
    rows = [("steps held", ", ".join(map(str, whole)) or "none")]
    rows += [(f"step {step} is damaged", problem) for step, problem in problems.items() if problem]
    if wanted is not None and wanted not in whole:
        raise ConfigError(f"--step {wanted}: {folder} holds {rows[0][1]}")
    if whole:
        step = select.chosen_step(home, wanted, options.best) if options.best else wanted
        step = whole[-1] if step is None else step
        select.saved_config(run, step)
        rows += _checkpoint_rows(folder, step, whole, config.train.metric)
    print_pairs([("run", home), *rows, *_config_rows(config)])
    if not whole and (steps or files.damaged_ones(folder)):
        raise checkpointer.CheckpointError(f"Every checkpoint in {folder} is damaged")


def _checkpoint_rows(
    folder: Path, step: int, whole: list[int], metric: str
) -> list[tuple[str, str]]:
    metas = {item: manifest.read_item(folder / str(item), "meta") for item in whole}
    measured = {item: files.validation_of(meta) for item, meta in metas.items()}
    values = {item: metrics.get(metric) for item, metrics in measured.items()}
    best = files.best_step({k: cost(metric, v) for k, v in values.items()})
    words = metric.replace("_", " ")
    count = 0

    def counted():
        nonlocal count
        for name, array in read_arrays(folder / str(step), ("params/", "opt_state/")):
            count += array.size if name.startswith("params/") else 0
            yield name, array

    digest = checkpointer.content_hash(counted())
    return [
        ("best step", "not measured" if best is None else f"{best} ({words} {values[best]:.4f})"),
        ("validation", f"{in_words(measured[step]) or 'not measured'} at step {step}"),
        ("parameters", f"{count:,}"),
        ("content hash", f"{digest} (step {step})"),
    ]


def _config_rows(config: Any) -> list[tuple[str, str]]:
    """One row per part of the config."""
    parts = [field.name for field in dataclasses.fields(config)]
    return [(name, "\n".join(textwrap.wrap(summary(getattr(config, name)), 90))) for name in parts]


@dataclass(frozen=True)
class Merge(CheckpointChoice):
    """Multiplies out the low-rank factors (LoRA) of a run.

    Writes a run folder with plain weights, which --init-from, evaluate and inspect read.
    """

    run_dir: RunDir
    """The folder of a run that trained low-rank factors."""
    out_dir: OutDir
    """A new or an empty folder."""


def merge(arguments: Sequence[str], prog: str) -> None:
    """Writes a run with plain weights."""
    options = parse(Merge, arguments, prog)
    jax.config.update("jax_platforms", "cpu")
    print(lora.merge(options.run_dir, options.out_dir, options.step, options.best).in_words())


@dataclass(frozen=True)
class Compare:
    """Compares runs by their validation losses, as a table and as a picture."""

    run_dirs: RunDirs
    """The folders of the runs."""
    out: Path = Path("comparison.png")
    """The picture."""
    title: str = "Comparison"
    """Its title."""


def compare(arguments: Sequence[str], prog: str) -> None:
    """Prints and draws the validation losses of several runs."""
    options = parse(Compare, arguments, prog)
    if not options.run_dirs:
        raise ArgumentError(f"{prog}: name the folder of at least one run")
    folders = {folder.name: folder for folder in options.run_dirs}
    measured = {name: curve(folder, "validation") for name, folder in folders.items()}
    for name, (steps, _) in measured.items():
        if not len(steps):
            raise ConfigError(f"{folders[name]} holds no validation loss: is it a run's folder?")
    final = [(losses[-1], name, steps[-1]) for name, (steps, losses) in measured.items()]
    rows = [(name, f"{loss:.4f} at step {step:.0f}") for loss, name, step in sorted(final)]
    print_pairs(rows)
    print(plot_comparison(folders, options.out, options.title))
