"""``jaxformer predict DIR``: labels, tags, answers or embeddings for the rows of a file."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jaxformer.cli.options import Dtype, ModelChoice, part_of
from jaxformer.distributed.compiled import keep_compiled
from jaxformer.generation.speech.prediction import TranscriptPredictor
from jaxformer.io.paths import any_path
from jaxformer.io.tables import check_table
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.pretrained.prediction.predictor import Predictor
from jaxformer.pretrained.prediction.table import PredictedTable, new_name


@dataclass(frozen=True, kw_only=True)
class Predict(PredictionConfig, ModelChoice):
    """Predicts labels, tags, answers or embeddings for each row of a table.

    The columns depend on the model's head. Classification: label and score (its probability);
    multi-label classification: also labels and score_NAME for each. Regression: score. Tagging:
    words, tags and, with B-/I- tags, entities. Question answering: answer, score, start and end.
    Without a head: embedding. Input columns are kept; if one has the name of a prediction, the
    prediction is called predicted_NAME.
    """

    input: Path
    """The input table: .csv, .tsv, .jsonl or .parquet; for a model of images or sounds also a
    folder with them.
    """
    output: Path
    """The output table: .csv, .tsv, .jsonl or .parquet. Lists are JSON in .csv and .tsv."""
    header: bool = True
    """The first line of the input contains column names; otherwise columns are called 0, 1, ..."""
    resume: bool = False
    """Continue an interrupted prediction."""
    dtype: Dtype | None = None
    """The dtype of the weights and the computation (None: the dtype that the weights are saved in).
    """
    compilation_cache: Path | None = None
    """The folder of compiled programs (None: on an accelerator, one in the user's cache)."""


def predict(options: Predict) -> None:
    """Writes a table with a model's predictions for each row."""
    output = any_path(options.output, "--output")
    check_table(output, "--output")
    table = PredictedTable(any_path(options.input, "--input"), output, options.header)
    table.check_unused(options.resume)
    keep_compiled(options.compilation_cache)
    config = part_of(PredictionConfig, options)
    keywords = {"dtype": options.dtype, "writer": TranscriptPredictor}
    predictor = open_predictor(options.folder, config, **keywords, **options.how)
    table = dataclasses.replace(table, read=predictor.reader.records)
    total = table.count(predictor)
    names = (*vars(config), *options.how, "dtype", "header")
    values = {name: getattr(options, name) for name in names}
    settings = {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}
    with _bar() as bar:
        task = bar.add_task("predicting", total=total)
        table.predict(
            predictor,
            {"folder": str(options.folder), **settings},
            lambda count: bar.update(task, completed=count),
        )
    print(_report(table, predictor, total))


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
        lines.append(f"the input already has columns with these names: {renamed}")
    if predictor.cut:
        length = predictor.reader.max_length
        lines.append(
            f"{predictor.cut:,} of {predictor.count:,} rows were longer than {length:,} "
            f"{predictor.reader.unit} and were truncated"
        )
    return "\n".join(lines)
