"""What a model scores on the validation rows: the loss, and the metrics of each kind of head."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.checkpoints.files import write_json
from jaxformer.config.experiment import Config
from jaxformer.data import Datasets
from jaxformer.data.tasks.parallel_text import ParallelExamples
from jaxformer.data.tasks.span_text import SpanExamples
from jaxformer.distributed.processes import DeviceBatches, local_rows
from jaxformer.functional.losses import LossSums
from jaxformer.io.serialization import to_json
from jaxformer.models import (
    Classification,
    Head,
    LanguageModel,
    MaskedLanguageModel,
    Parameters,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.base import Predictions
from jaxformer.training.evaluation import metrics as scores
from jaxformer.training.evaluation.baseline import trivial_answers
from jaxformer.training.evaluation.translation import Translation, save, translate
from jaxformer.training.step import Sums, TrainProgram

EVALUATION_FILE = "evaluation.json"


class HeadResult(NamedTuple):
    """What one head did on all validation rows, as numpy arrays and Python numbers."""

    sums: LossSums
    """Over all rows."""
    outcome: Predictions | None
    """The predictions of every row, where the head makes any."""
    rows: np.ndarray
    """int [rows], the numbers of the rows of `outcome` among the examples."""

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.sums.loss / max(self.sums.weight, 1.0)

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return self.sums.correct / max(self.sums.weight, 1.0)


class Conclusion(NamedTuple):
    """What came out of a run, for its folder and for people."""

    step: int
    """Updates behind the parameters."""
    rows: int
    """Validation rows that were read."""
    metrics: dict[str, float]
    trivial: dict[str, float]
    """The metrics of the best answer that never looks at the inputs, where training data are."""
    translations: list[Translation]
    """Of the validation sources, where the data have such."""

    def save(self, file: Path, folder: Path, config: Config) -> list[Path]:
        """Writes what a program may want to read: JSON, and the translations beside it.

        Args:
            file: The JSON file.
            folder: The run's.
            config: The experiment, whose data are part of it.

        Returns:
            The files: translations.txt beside evaluation.json, X-translations.txt beside X.json.
        """
        content = {
            "run": str(folder),
            "step": self.step,
            "rows": self.rows,
            "metrics": _finite(self.metrics),
            "trivial": _finite(self.trivial),
            "data": to_json(config.data),
        }
        write_json(file, content)
        if not self.translations:
            return [file]
        prefix = "" if file.name == EVALUATION_FILE else f"{file.stem}-"
        beside = file.with_name(f"{prefix}translations.txt")
        save(self.translations, beside)
        return [file, beside]


def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """What JSON can hold."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def evaluate(
    config: Config, program: TrainProgram, params: Parameters, data: Datasets
) -> dict[str, float]:
    """Measures parameters on the validation rows, the same ones each time.

    Args:
        config: The experiment.
        program: The training program.
        params: The parameters.
        data: Whose validation side counts.

    Returns:
        ``loss``, the sum over the heads of the means over what they predict, and each head's own
        metrics, see `head_metrics`; with several heads under "<head>_<metric>".
    """
    results = measure(config, program, params, data)
    found = {}
    for head in config.model.heads:
        result = results[head.name]
        found[head.name] = head_metrics(head, result, data) if result.sums.weight > 0 else {}
    return {"loss": sum(result.loss for result in results.values())} | scores.of_heads(found)


def conclude(
    config: Config,
    program: TrainProgram,
    params: Parameters,
    data: Datasets,
    step: int,
    say: Callable[[str], None],
    metrics: dict[str, float] | None = None,
) -> Conclusion:
    """Measures what is worth measuring once, at the end: `evaluate`, and translations with BLEU.

    Args:
        config: The experiment.
        program: The training program.
        params: The parameters.
        data: Whose validation side counts.
        step: Updates behind the parameters.
        say: Shows a person what takes a while.
        metrics: What `evaluate` gave, if it was called already.
    """
    metrics = metrics or evaluate(config, program, params, data)
    trivial = {} if data.train is None else trivial_answers(config, data)
    examples, most = data.validation.examples, config.data.max_validation_batches
    rows = len(examples) if most is None else min(len(examples), most * config.data.batch_size)
    if not isinstance(examples, ParallelExamples):
        return Conclusion(step, rows, metrics, trivial, [])
    say(f"translating {rows} validation sources")
    batches = validation_batches(config, program, data)
    translations = translate(program, params, batches, examples.pairs, data.tokenizer)
    texts = [translation.text for translation in translations]
    references = [translation.reference for translation in translations]
    metrics = metrics | scores.translation_scores(texts, references)
    return Conclusion(step, rows, metrics, trivial, translations)


def validation_batches(config: Config, program: TrainProgram, data: Datasets) -> DeviceBatches:
    """The validation rows on the devices, as many at a time as training computes at a time."""
    parts, most = config.train.gradient_accumulation, config.data.max_validation_batches
    num_rows = config.data.batch_size // parts
    batches = data.validation.epoch(
        num_rows,
        rows=local_rows(program.batch_sharding, num_rows),
        max_batches=None if most is None else most * parts,
    )
    return DeviceBatches(batches, program.batch_sharding, num_rows)


def measure(
    config: Config, program: TrainProgram, params: Parameters, data: Datasets
) -> dict[str, HeadResult]:
    """What every head did on the validation rows; every process gets all of it."""
    batches = validation_batches(config, program, data)
    total: Sums = {}
    outcomes, rows = [], []
    for measured in _read_late(program.eval_step(params, batch) for batch in batches):
        # As Python floats, whose sum over many batches loses nothing.
        sums = jax.tree.map(float, measured.sums)
        total = jax.tree.map(lambda x, y: x + y, total, sums) if total else sums
        real = measured.rows >= 0
        outcomes.append(jax.tree.map(lambda x, real=real: x[real], measured.outcomes))
        rows.append(measured.rows[real])
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *outcomes)
    numbers = np.concatenate(rows)
    return {name: HeadResult(sums, joined.get(name), numbers) for name, sums in total.items()}


def _read_late(results: Iterable[Any]) -> Iterator[Any]:
    """Reads each result once the next one is started, so that the devices never wait."""
    pending = None
    for result in results:
        if pending is not None:
            yield jax.device_get(pending)
        pending = result
    if pending is not None:
        yield jax.device_get(pending)


# The metrics of each kind of head -----------------------------------------------------------------


@singledispatch
def head_metrics(head: Head, result: HeadResult, data: Datasets) -> dict[str, float]:
    """What people want to see of a head.

    Register a function for another kind of head: `@head_metrics.register`.

    Args:
        head: The head's description.
        result: What it did.
        data: What it was given.
    """
    del head, data
    return {"accuracy": result.accuracy}


@head_metrics.register
def _(head: LanguageModel, result, data):
    values = {"perplexity": _perplexity(result.loss), "accuracy": result.accuracy}
    if data.tokens_per_byte is not None:
        values["bits_per_byte"] = result.loss / math.log(2) * data.tokens_per_byte
    return values


@head_metrics.register
def _(head: MaskedLanguageModel, result, data):
    return {"perplexity": _perplexity(result.loss), "accuracy": result.accuracy}


@head_metrics.register
def _(head: Classification, result, data):
    predictions, references, weights, _ = result.outcome
    return scores.classification_scores(predictions, references, weights, head.num_labels)


@head_metrics.register
def _(head: Regression, result, data):
    predictions, references, weights, _ = result.outcome
    return {
        "squared_error": result.loss,
        **scores.regression_scores(predictions, references, weights),
    }


@head_metrics.register
def _(head: TokenClassification, result, data):
    predictions, references, weights, _ = result.outcome
    tags = data.labels or tuple(map(str, range(head.num_labels)))
    return scores.tag_scores(predictions, references, weights, tags)


@head_metrics.register
def _(head: Span, result, data):
    texts, references = best_answers(result, data.validation.examples)
    return scores.answer_scores(texts, references)


def best_answers(result: HeadResult, examples: SpanExamples) -> tuple[list[str], list[tuple]]:
    """Returns the answer to each question, and the right ones.

    Of a question's windows the one whose span scores highest answers; there is no answer where
    even that is less than what each of them gives to having none.

    Args:
        result: What the span head did.
        examples: The questions.
    """
    best: dict[int, tuple[float, str]] = {}
    nothing: dict[int, float] = {}
    spans, scores_of_rows = result.outcome.predictions, result.outcome.scores
    for row, span, (score, none) in zip(result.rows, spans, scores_of_rows, strict=True):
        question = examples.windows[row].question
        nothing[question] = min(none, nothing.get(question, math.inf))
        if question not in best or score > best[question][0]:
            best[question] = score, examples.answer(row, *span)
    texts = [text if score > nothing[q] else "" for q, (score, text) in best.items()]
    return texts, [examples.questions[question].answers for question in best]


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))
