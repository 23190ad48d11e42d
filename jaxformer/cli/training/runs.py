"""``jaxformer inspect``, ``merge`` and ``compare``: inspect and compare runs."""

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoints import checkpointer, files, manifest, run_dir, saved_run
from jaxformer.checkpoints.restore import read_arrays, saved_config
from jaxformer.cli.options import CheckpointChoice, OutDir, RunDir, RunDirs
from jaxformer.config.train import cost
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.hub.remote.names import read_source
from jaxformer.io.serialization import summary
from jaxformer.io.tables import check_table, write_table
from jaxformer.training.logging import comparison
from jaxformer.training.logging.plot import Line, is_per_token, plot_comparison
from jaxformer.training.logging.published_scores import published_lines
from jaxformer.training.logging.report import print_pairs
from jaxformer.training.logging.run_logger import format_metrics
from jaxformer.training.transfer import merge as lora


@dataclass(frozen=True)
class Inspect(CheckpointChoice):
    """Shows the checkpoints of a run, its config and the size of its model.

    Also prints a hash of the exact bits of the parameters and the optimizer state.
    """

    run_dir: RunDir
    """The run's folder."""


def inspect(options: Inspect) -> None:
    """Prints the contents of a run's folder."""
    jax.config.update("jax_platforms", "cpu")  # no accelerator is needed, and it may be busy
    home, requested = saved_run.run_and_step(options.run_dir, options.step, options.best)
    run = run_dir.RunConfig(home)
    whole, rows = saved_run.retry_if_deleted(home, lambda: _run_rows(run, requested, options.best))
    print_pairs([("run", home), *rows, *_config_rows(run.config)])
    folder = (home / run_dir.CHECKPOINTS).absolute()
    if not whole and (files.saved_steps(folder) or files.damaged_checkpoints(folder)):
        raise checkpointer.CheckpointError(f"Every checkpoint in {folder} is damaged")


def _run_rows(
    run: run_dir.RunConfig, requested: int | None, best: bool
) -> tuple[list[int], list[tuple[str, str]]]:
    """Returns the intact steps, and the rows to show about the run other than its configuration."""
    folder = (run.folder / run_dir.CHECKPOINTS).absolute()
    steps = files.saved_steps(folder)
    holds = [files.StepHold(folder / str(step)) for step in steps]
    problems = {step: manifest.damage(folder / str(step)) for step in steps}
    whole = [step for step in steps if problems[step] is None]
    rows = [("steps held", ", ".join(map(str, whole)) or "none")]
    if (source := read_source(run.folder / run_dir.IMPORTED)) is not None:
        rows.append(("from the hub", str(source)))
    rows += [(f"step {step} is damaged", problem) for step, problem in problems.items() if problem]
    if requested is not None and requested not in whole:
        raise ConfigError(f"--step {requested}: {folder} contains {rows[0][1]}")
    if whole:
        step = saved_run.chosen_step(run.folder, requested, best) if best else requested
        step = whole[-1] if step is None else step
        saved_config(run, step)
        rows += _checkpoint_rows(folder, step, whole, run.config.train.metric)
    for hold in holds:
        hold.close()
    return whole, rows


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
        ("validation", f"{format_metrics(measured[step]) or 'not measured'} at step {step}"),
        ("parameters", f"{count:,}"),
        ("content hash", f"{digest} (step {step})"),
    ]


def _config_rows(config: Any) -> list[tuple[str, str]]:
    """Returns one row per section of the config."""
    parts = [field.name for field in dataclasses.fields(config)]
    return [(name, "\n".join(textwrap.wrap(summary(getattr(config, name)), 90))) for name in parts]


@dataclass(frozen=True)
class Merge(CheckpointChoice):
    """Merges the low-rank factors (LoRA) of a run into plain weights.

    Writes a run folder with plain weights, for --init-from, evaluate and inspect.
    """

    run_dir: RunDir
    """The folder of a run that trained low-rank factors."""
    out_dir: OutDir
    """A new or empty folder."""


def merge(options: Merge) -> None:
    """Writes a run with plain weights."""
    jax.config.update("jax_platforms", "cpu")
    print(lora.merge(options.run_dir, options.out_dir, options.step, options.best).report())


@dataclass(frozen=True)
class Compare:
    """Compares runs by a validation metric, in a table and in plots against steps and compute.

    The table shows the best value, the parameters, tokens and FLOPs up to it, and the settings that
    differ between runs, for example in a sweep: jaxformer compare runs/sweep-*. For BLEU and ROUGE,
    published scores of the recipes on other data follow.
    """

    run_dirs: RunDirs
    """The folders of the runs."""
    metric: str = "loss"
    """The validation metric: loss, accuracy, entity_f1, ... or a final metric, such as bleu. The
    best run is listed first.
    """
    out: Path = Path("comparison.png")
    """The plot; the plot against compute is written next to it as comparison-compute.png."""
    title: str = "Comparison"
    """Its title."""
    json: bool = False
    """Print only the table, as a JSON list of objects."""
    table: Path | None = None
    """A .csv, .tsv, .jsonl or .parquet file to write the table to."""


def compare(options: Compare) -> None:
    """Prints and draws a validation metric of several runs."""
    if not options.run_dirs:
        raise ArgumentError("jaxformer compare: name the folder of at least one run")
    if options.table is not None:
        check_table(options.table, "--table")
    jax.config.update("jax_platforms", "cpu")
    runs = comparison.compared_runs(options.run_dirs, options.metric)
    rows = comparison.table(runs)
    written = _pictures(runs, options)
    if options.table is not None:
        write_table(options.table, lambda: iter(rows))
        written.append(options.table)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    lines = [*comparison.in_columns(rows, options.metric), *published_lines(options.metric)]
    print("\n".join([*lines, *map(str, written)]))


def _pictures(runs: Sequence[comparison.ComparedRun], options: Compare) -> list[Path]:
    """Draws the runs against steps and, if known, against compute."""
    per_token = options.metric == "loss" and all(is_per_token(run.folder) for run in runs)
    look = {"title": options.title, "metric": options.metric, "per_token": per_token}
    steps = [Line(run.name, run.steps, run.values) for run in runs]
    written = [plot_comparison(steps, options.out, **look)]
    known = [run for run in runs if run.work is not None and len(run.steps)]
    if known:
        path = options.out.with_stem(f"{options.out.stem}-compute")
        spent = [np.array([run.work.flops(int(step)) for step in run.steps]) for run in known]
        lines = [Line(r.name, flops, r.values) for r, flops in zip(known, spent, strict=True)]
        written.append(plot_comparison(lines, path, **look, compute=True))
    return written
