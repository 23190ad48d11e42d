"""GLUE scores: of each task, and their average."""

import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from jaxformer.checkpoints.files import write_json
from jaxformer.data.tasks.glue_tasks import TASKS
from jaxformer.io.console import console, markdown_table
from jaxformer.io.files import ordinary_file, replacing, write_text
from jaxformer.training.glue.measure import SUBMISSION, Measured
from jaxformer.training.glue.plan import GlueRun

Results = Sequence[tuple[GlueRun, Measured]]


def score(metrics: Mapping[str, float]) -> float:
    """Returns a task's score: the mean of its metrics (F1 and accuracy, both sides of MNLI)."""
    return statistics.fmean(metrics.values())


def average(scores: Mapping[str, float]) -> float:
    """Returns the GLUE score, the mean over the tasks.

    References:
        Wang et al., GLUE, https://arxiv.org/abs/1804.07461, section 5
    """
    return statistics.fmean(scores.values())


class TaskResult(NamedTuple):
    """The result of a task over its runs."""

    metrics: dict[str, float]
    """The median of each metric over the seeds, with the best learning rate."""
    learning_rate: float
    """The best learning rate."""
    best: GlueRun
    """The best run with this learning rate, whose predictions are submitted."""
    runs: Results

    @property
    def score(self) -> float:
        """The task's score."""
        return score(self.metrics)


def task_result(runs: Results) -> TaskResult:
    """Returns the result of a task."""
    by_rate: dict[float, list[tuple[GlueRun, Measured]]] = {}
    for run, measured in runs:
        by_rate.setdefault(run.learning_rate, []).append((run, measured))
    medians = {rate: _medians(found) for rate, found in by_rate.items()}
    rate = max(medians, key=lambda rate: score(medians[rate]))
    best, _ = max(by_rate[rate], key=lambda found: score(found[1].metrics))
    return TaskResult(medians[rate], rate, best, runs)


def _medians(runs: Results) -> dict[str, float]:
    names = runs[0][1].metrics
    return {name: statistics.median(found.metrics[name] for _, found in runs) for name in names}


def summary(results: Mapping[str, TaskResult]) -> dict[str, Any]:
    """Returns all results as JSON types; fractions are in [0, 1], correlations in [-1, 1]."""
    tasks = {
        task: {
            "score": result.score,
            "metrics": result.metrics,
            "learning_rate": result.learning_rate,
            "runs": [_run_row(*found) for found in result.runs],
        }
        for task, result in results.items()
    }
    scores = {task: result.score for task, result in results.items()}
    content: dict[str, Any] = {"average": average(scores)}
    if "wnli" in scores and len(scores) > 1:
        others = {task: value for task, value in scores.items() if task != "wnli"}
        content["average_without_wnli"] = average(others)
    return content | {"tasks": tasks}


def _run_row(run: GlueRun, measured: Measured) -> dict[str, Any]:
    return {
        "folder": run.folder.name,
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "steps": measured.step,
        "metrics": measured.metrics,
    }


def report(results: Mapping[str, TaskResult], folder: Path) -> list[Path]:
    """Prints the table, and writes it and the submission files to the output folder."""
    content = summary(results)
    rows = _rows(results, content)
    write_json(folder / "results.json", content)
    lines = markdown_table(rows[0], rows[1:], right=(2,))
    write_text(folder / "results.md", "".join(f"{line}\n" for line in lines))
    table = Table(*rows[0])
    table.columns[-1].justify = "right"
    for row in rows[1:]:
        table.add_row(*row)
    console().print(table, markup=False)
    return [folder / "results.json", folder / "results.md", *_submissions(results, folder)]


def _rows(results: Mapping[str, TaskResult], content: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = [("task", "metrics on the development data", "score")]
    for task, result in results.items():
        words = (f"{name.replace('_', ' ')} {_percent(x)}" for name, x in result.metrics.items())
        rows.append((TASKS[task].title, ", ".join(words), _percent(result.score)))
    count = f"of {len(results)} task{'s' * (len(results) > 1)}"
    rows.append(("average", count, _percent(content["average"])))
    if "average_without_wnli" in content:
        rows.append(("average", "without WNLI", _percent(content["average_without_wnli"])))
    return rows


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _submissions(results: Mapping[str, TaskResult], folder: Path) -> list[Path]:
    """Copies the files of each task's best run to one folder."""
    copied = []
    for result in results.values():
        measured = next(found for run, found in result.runs if run == result.best)
        for relative in measured.submissions.values():
            target = folder / SUBMISSION / Path(relative).name
            target.parent.mkdir(exist_ok=True)
            with replacing(target) as temporary:
                shutil.copyfile(ordinary_file(result.best.folder / relative), temporary)
            copied.append(target)
    return copied
