"""The results of a finished GLUE run: metrics and submission files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxformer.checkpoints.files import write_json
from jaxformer.checkpoints.run_dir import CONFIG_FILE, read_config
from jaxformer.config.experiment import changed_fields
from jaxformer.data.files.record import Record
from jaxformer.data.tasks.glue import GlueFolder
from jaxformer.data.tasks.glue_tasks import DIAGNOSTIC, TASKS, GlueTask
from jaxformer.data.tasks.labelled_text import LabelledRow
from jaxformer.errors import ConfigError
from jaxformer.io.files import read_json, write_text
from jaxformer.models.heads.metrics import classification_scores
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.pretrained.prediction.predictor import Predictor
from jaxformer.training.glue.plan import GlueRun
from jaxformer.training.result import TrainResult

RESULT_FILE = "glue.json"
SUBMISSION = "submission"
_COLUMNS = ("first", "second")
_MOST_SIMILAR = 5.0


class Measured(NamedTuple):
    """The result of a run."""

    step: int
    """Number of steps taken."""
    metrics: dict[str, float]
    """GLUE's metrics for the task on the development data."""
    submissions: dict[str, str]
    """The prediction files by name, as paths relative to the run's folder."""
    asked: Sequence[float | None] = ()
    """The requested steps and epochs."""


def finished(run: GlueRun) -> Measured | None:
    """Returns the stored results of a finished run, or None."""
    file = run.folder / RESULT_FILE
    if not file.is_file() or not (run.folder / CONFIG_FILE).is_file():
        return None
    if changes := changed_fields(read_config(run.folder), run.config):
        listed = "; ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in changes.items())
        raise ConfigError(
            f"{run.folder} holds a finished run with other settings ({listed}): name another "
            "folder with --run-dir"
        )
    measured = Measured(**read_json(file))
    return measured if list(measured.asked) == _requested(run) else None


def _requested(run: GlueRun) -> list[float | None]:
    return [run.config.train.steps, run.config.train.epochs]


def measure(run: GlueRun, result: TrainResult) -> Measured:
    """Measures a finished run, and writes its predictions for the test data."""
    task, files = TASKS[run.task], run.config.data.files
    found = {name: result.metrics[name] for name in task.metrics}
    others = task.dev[1:]
    if others:
        found = {f"{name}_{_side(task.dev[0])}": value for name, value in found.items()}
    queries = {split: file for split, file in task.submitted.items() if files.files(split)}
    diagnostic = GlueFolder(files.root, DIAGNOSTIC)
    asks_diagnostic = run.task == "mnli" and bool(diagnostic.files("test"))
    submissions: dict[str, str] = {}
    if others or queries or asks_diagnostic:
        model = open_predictor(run.folder, PredictionConfig(text=_COLUMNS[: len(task.text)]))
        for split in others:
            rows = files.rows(split)
            predicted = _predictions(model, rows, task)
            scores = _scores(predicted, rows, task)
            found |= {f"{name}_{_side(split)}": scores[name] for name in task.metrics}
        for split, name in queries.items():
            submissions[name] = _submit(model, files, split, run.folder / SUBMISSION / name)
        if asks_diagnostic:
            file = run.folder / SUBMISSION / DIAGNOSTIC.title
            submissions[DIAGNOSTIC.title] = _submit(model, diagnostic, "test", file)
    measured = Measured(result.step, found, submissions, _requested(run))
    write_json(run.folder / RESULT_FILE, measured._asdict())
    return measured


def _side(split: str) -> str:
    return split.removeprefix("dev_")


def _predictions(model: Predictor, rows: Sequence[LabelledRow], task: GlueTask) -> list[str]:
    """Returns the predicted label of each row in GLUE's notation."""
    records = [Record(row.where, dict(zip(_COLUMNS, row.texts, strict=False))) for row in rows]
    found = model.predict(records)
    if task.labels:
        return [str(row["label"]) for row in found]
    return [f"{min(max(row['score'], 0.0), _MOST_SIMILAR):.3f}" for row in found]


def _scores(predicted: list[str], rows: list[LabelledRow], task: GlueTask) -> dict[str, float]:
    labels = [str(row.label) for row in rows]
    sides = [[task.labels.index(label) for label in side] for side in (predicted, labels)]
    return classification_scores(*sides, np.ones(len(rows)), len(task.labels))


def _submit(model: Predictor, files: GlueFolder, split: str, file: Path) -> str:
    """Writes the predictions for a split in the format of gluebenchmark.com; returns the path."""
    file = file.with_suffix(".tsv")
    queries = files.query_rows(split)
    predicted = _predictions(model, [query.row for query in queries], files.task)
    lines = ["index\tprediction"]
    lines += [f"{query.index}\t{label}" for query, label in zip(queries, predicted, strict=True)]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "\n".join(lines) + "\n")
    return file.relative_to(file.parents[1]).as_posix()
