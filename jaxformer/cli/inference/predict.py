"""``jaxformer predict DIR``: labels, tags, answers or embeddings for the rows of a file."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jaxformer.cli.options import Dtype, ModelChoice, ModelDir
from jaxformer.config.overrides import parse
from jaxformer.io.paths import any_path
from jaxformer.io.tables import check_table
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.pretrained.prediction.predictor import Predictor
from jaxformer.pretrained.prediction.table import PredictedTable, new_name


@dataclass(frozen=True, kw_only=True)
class Predict(PredictionConfig, ModelChoice):
    """Predicts something for each row of a table: what the model's head has learned.

    A classifier gives label and score (its probability), and one of several labels a row labels and
    score_NAME for each besides; a regression gives score. A tagger gives words,
    tags and, where tags mark entities (B-, I-), entities. A reader of question and context gives
    answer, score, start and end. A model without a head gives embedding. The columns of the input
    stay, and a prediction whose name is taken is called predicted_NAME.
    """

    folder: ModelDir = field(kw_only=True)
    """The folder of a run or of a Hugging Face checkpoint; or its name on the hub, org/name or
    org/name@revision."""
    input: Path
    """The table: .csv, .tsv, .jsonl, .parquet; for a model of images a folder of them."""
    output: Path
    """The table to write: .csv, .tsv, .jsonl or .parquet. Lists are JSON in .csv and .tsv."""
    header: bool = True
    """The first line of the input names its columns; without it they are called 0, 1, ..."""
    resume: bool = False
    """Continue after the predictions of a command that was interrupted."""
    dtype: Dtype | None = None
    """The type of the weights and the computation (None: the type that the weights are saved
    in)."""
    compilation_cache: Path | None = None
    """A folder that keeps compiled programs for the next time."""


def predict(arguments: Sequence[str], prog: str) -> None:
    """Writes a table with what a model predicts for each row."""
    wanted = parse(Predict, arguments, prog)
    output = any_path(wanted.output, "--output")
    check_table(output, "--output")
    table = PredictedTable(any_path(wanted.input, "--input"), output, wanted.header)
    table.check_unused(wanted.resume)
    if wanted.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(wanted.compilation_cache))
    names = [item.name for item in dataclasses.fields(PredictionConfig)]
    config = PredictionConfig(**{name: getattr(wanted, name) for name in names})
    predictor = open_predictor(wanted.folder, config, dtype=wanted.dtype, **wanted.how)
    table = dataclasses.replace(table, read=predictor.reader.records)
    total = table.count(predictor)
    settings = {
        name: _plain(getattr(wanted, name)) for name in (*names, *wanted.how, "dtype", "header")
    }
    with _bar() as bar:
        task = bar.add_task("predicting", total=total)
        table.predict(
            predictor,
            {"folder": str(wanted.folder), **settings},
            lambda count: bar.update(task, completed=count),
        )
    print(_report(table, predictor, total))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _report(table: PredictedTable, predictor: Predictor, total: int) -> str:
    lines = [f"written to {table.output}: {total:,} rows"]
    first = next(table.records())
    taken = [name for name in predictor.names if new_name(name, first.values) != name]
    if taken:
        renamed = ", ".join(f"{name} is {new_name(name, first.values)}" for name in taken)
        lines.append(f"the input has columns of these names: {renamed}")
    if predictor.cut:
        length = predictor.reader.max_length
        lines.append(
            f"{predictor.cut:,} of {predictor.count:,} rows were longer than {length} tokens and "
            "were cut"
        )
    return "\n".join(lines)
