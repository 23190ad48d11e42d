"""Compares runs: metrics, differences in settings, and cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checkpoints.run_dir import CONFIG_FILE, read_config
from jaxformer.config.experiment import Config
from jaxformer.config.train import cost
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.io.console import aligned
from jaxformer.io.files import read_json
from jaxformer.io.paths import AnyPath, any_path
from jaxformer.io.serialization import to_json
from jaxformer.models.parameters import AbstractModel
from jaxformer.training.evaluation.conclusion import EVALUATION_FILE
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.logging.progress import short_number
from jaxformer.training.logging.report import parameter_count
from jaxformer.training.logging.throughput import RunWork


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """A run in a comparison."""

    name: str
    """Its name in the comparison."""
    folder: AnyPath
    metric: str
    """The compared validation metric."""
    steps: np.ndarray
    """The steps at which the metric was measured."""
    values: np.ndarray
    """The values of the metric."""

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """The step and value of the best evaluation, or None."""
        if not len(self.steps):
            return None
        costs = [cost(self.metric, value) for value in self.values]
        first = int(np.argmin(costs))
        return int(self.steps[first]), float(self.values[first])

    @cached_property
    def config(self) -> Config | None:
        """The configuration, or None if the folder has none."""
        return read_config(self.folder) if (self.folder / CONFIG_FILE).exists() else None

    @cached_property
    def work(self) -> RunWork | None:
        """The tokens and model FLOPs of its steps, computed from the configuration."""
        return None if self.config is None else RunWork.of(self.config)

    def row(self) -> dict[str, Any]:
        """The run's row in the table; None for unknown values."""
        step, value = self.best or (None, None)
        model = None if self.config is None else AbstractModel(self.config.model.build)
        known = self.work is not None and step is not None
        return {
            "run": self.name,
            self.metric: value,
            "step": step,
            "parameters": None if model is None else parameter_count(model.shapes),
            "tokens": self.work.tokens(step) if known else None,
            "flops": self.work.flops(step) if known else None,
        }


def compared_runs(folders: Sequence[Path], metric: str) -> list[ComparedRun]:
    """Returns runs sorted by their best value of a metric, runs without the metric last."""
    folders = [any_path(folder, "run_dirs") for folder in folders]
    names = [folder.name for folder in folders]
    runs, measured = [], {}
    for folder in folders:
        if not folder.is_dir():
            wrong = "is a file" if folder.exists() else "does not exist"
            raise ConfigError(f"run_dirs: {folder} {wrong}: name run folders")
        rows = read_metrics(folder, "validation")
        rows += _concluded(folder, metric, rows)
        if not rows and not read_metrics(folder):
            raise ConfigError(f"{folder} holds no validation {metric}: is it a run's folder?")
        measured |= {name: None for row in rows for name in row if name not in ("step", "split")}
        found = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
        steps, values = zip(*found, strict=True) if found else ((), ())
        name = folder.name if names.count(folder.name) == 1 else str(folder)
        runs.append(ComparedRun(name, folder, metric, np.array(steps, int), np.array(values)))
    if all(run.best is None for run in runs):
        known = f"there are {', '.join(measured)}" if measured else "nothing was"
        raise ConfigError(
            f"--metric {metric}: no run measured it; {known}{did_you_mean(metric, measured)}"
        )
    return sorted(runs, key=_rank)


def _concluded(
    folder: AnyPath, metric: str, rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns metrics that are measured only at the end of a run, such as BLEU."""
    path = folder / EVALUATION_FILE
    if not path.exists() or any(row.get(metric) is not None for row in rows):
        return []
    found = read_json(path)
    if (folder / CONFIG_FILE).exists():
        ours = to_json(read_config(folder).data), read_json(folder / CONFIG_FILE)["data"]
        if _on_all_rows(found.get("data")) not in map(_on_all_rows, ours):
            return []
    return [{"step": found["step"], "split": "validation", **found["metrics"]}]


def _on_all_rows(data: Any) -> Any:
    """Returns the data of an evaluation, regardless of how many batches were read."""
    return {**data, "max_validation_batches": None} if isinstance(data, dict) else data


def _rank(run: ComparedRun) -> tuple[float, str]:
    return (math.inf if run.best is None else cost(run.metric, run.best[1])), run.name


def table(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Returns a row for each run: its result, its cost, and the settings in which runs differ."""
    differing = settings([run.config for run in runs])
    return [run.row() | chosen for run, chosen in zip(runs, differing, strict=True)]


def in_columns(rows: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    """Formats the rows as an aligned table with a header."""
    names = [name for name in rows[0] if name not in ("run", metric, "step")]
    shown = [["run", metric, *names]]
    for row in rows:
        measured = "not measured"
        if row[metric] is not None:
            measured = f"{row[metric]:.4f} at step {row['step']}"
        counts = {name: row[name] for name in ("parameters", "tokens", "flops")}
        texts = {name: "" if x is None else short_number(x) for name, x in counts.items()}
        cells = [texts.get(name, _shown(row[name])) for name in names]
        shown.append([row["run"], measured, *cells])
    return aligned(shown, header=True)


def settings(configs: Sequence[Config | None]) -> list[dict[str, Any]]:
    """Returns for each configuration the fields that differ between configurations.

    A field is named by the shortest unique suffix of its dotted name.
    """
    flat = [{} if config is None else dict(_flat(to_json(config), "")) for config in configs]
    known = [values for values in flat if values]
    names = dict.fromkeys(name for values in known for name in values)
    differing = [name for name in names if len({repr(v.get(name)) for v in known}) > 1]
    # If the types of components differ, their fields are omitted.
    kinds = tuple(f"{name}." for name in differing if any(f"{name}.{_KIND}" in v for v in known))
    differing = [name for name in differing if not name.startswith(kinds)]
    short = {name: _short(name, differing) for name in differing}
    return [{short[name]: values.get(name) for name in differing} for values in flat]


_KIND = "type"


def _flat(value: Any, where: str) -> list[tuple[str, Any]]:
    """Flattens nested objects to dotted names; a component itself is named by its type."""
    if not isinstance(value, dict):
        return [(where, value)]
    found = []
    if where and _KIND in value:
        kind = value[_KIND].rpartition(".")[2]
        found = [(where, kind), (f"{where}.{_KIND}", kind)]
    inner = [pair for key in value if key != _KIND for pair in _flat(value[key], f"{where}.{key}")]
    return [(name.lstrip("."), each) for name, each in found + inner]


def _short(name: str, names: Sequence[str]) -> str:
    parts = name.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if sum(f".{other}".endswith(f".{end}") for other in names) == 1:
            return end
    return name


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " ".join(_shown(each) for each in value)
    if isinstance(value, dict):
        return str(value.get(_KIND, value)).rpartition(".")[2]
    return "" if value is None else str(value)
