"""Evaluation on the validation rows: the loss, and the metrics of each kind of head."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.data import Datasets
from jaxformer.data.tasks.span_text import SpanExamples
from jaxformer.data.tasks.text_to_text import TextToTextExamples
from jaxformer.distributed.processes import DeviceBatches, local_rows
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.models import (
    Classification,
    Contrastive,
    Head,
    LanguageModel,
    MaskedLanguageModel,
    MultiLabel,
    MultipleChoice,
    Parameters,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.base import Predictions
from jaxformer.training.evaluation import metrics as scores
from jaxformer.training.evaluation.baseline import trivial_answers
from jaxformer.training.evaluation.conclusion import Conclusion
from jaxformer.training.evaluation.generated_text import text_scores, write_texts
from jaxformer.training.step import Sums, TrainProgram


class HeadResult(NamedTuple):
    """The results of one head on all validation rows, as numpy arrays and Python numbers."""

    sums: LossSums
    """Over all rows."""
    predictions: Predictions | None
    """The predictions for every row, where the head makes any."""
    rows: np.ndarray
    """int [rows], the numbers of the rows of `predictions` among the examples."""

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.sums.loss / max(self.sums.weight, 1.0)

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return self.sums.correct / max(self.sums.weight, 1.0)


@dataclass(frozen=True)
class Evaluator:
    """Measures parameters on the validation rows, the same ones each time."""

    program: TrainProgram
    """The training program."""
    data: Datasets
    """The data, whose validation side is read."""
    max_batches: int | None
    """The most batches of the training's size to read; None: all rows."""

    def evaluate(self, params: Parameters) -> dict[str, float]:
        """The metrics of some parameters.

        Args:
            params: The parameters, on the program's mesh.

        Returns:
            ``loss``, the sum over the heads of the means over what they predict, and each head's
            own metrics, see `head_metrics`; with several heads under "<head>_<metric>". Those of
            `Loss.validation` instead, where the loss is not that of heads.
        """
        results = self.measure(params)
        loss = self.program.loss
        own = loss.validation({name: result.sums for name, result in results.items()})
        if own is not None:
            return own
        found = {}
        for head in self.program.model.heads:
            result = results[head.name]
            found[head.name] = (
                head_metrics(head, result, self.data) if result.sums.weight > 0 else {}
            )
        return {"loss": sum(result.loss for result in results.values())} | scores.of_heads(found)

    def conclude(
        self,
        params: Parameters,
        step: int,
        say: Callable[[str], None],
        metrics: dict[str, float] | None = None,
    ) -> Conclusion:
        """Measures once what takes longer: `evaluate`, and texts that the model writes.

        Args:
            params: The parameters, on the program's mesh.
            step: Updates behind the parameters.
            say: Receives a line before what takes a while.
            metrics: What `evaluate` returned, if it was called already.

        Returns:
            The metrics, the baseline and the texts.
        """
        data, most = self.data, self.max_batches
        metrics = metrics or self.evaluate(params)
        trivial = {}
        if data.train is not None:
            own = self.program.loss.heads
            heads = [head for head in self.program.model.heads if head.name in own]
            trivial = trivial_answers(heads, data.train, data.validation, most)
        examples = data.validation.examples
        rows = len(examples) if most is None else min(len(examples), most * self._batch_size)
        if not isinstance(examples, TextToTextExamples):
            return Conclusion(step, rows, metrics, trivial, [])
        say(f"writing {examples.config.product[1]} for {rows} validation sources")
        texts = write_texts(self.program, params, self.batches(), examples, data.tokenizer)
        metrics = metrics | text_scores(examples.config.metric, texts)
        return Conclusion(step, rows, metrics, trivial, texts)

    def batches(self) -> DeviceBatches:
        """The validation rows on the devices, as many at a time as training computes at a time."""
        parts, most = self.program.train.gradient_accumulation, self.max_batches
        sharding, num_rows = self.program.batch_sharding, self._batch_size // parts
        batches = self.data.validation.epoch(
            num_rows,
            rows=local_rows(sharding, num_rows),
            max_batches=None if most is None else most * parts,
        )
        return DeviceBatches(batches, sharding, num_rows)

    def measure(self, params: Parameters) -> dict[str, HeadResult]:
        """The results of every head on the validation rows; every process gets all of them."""
        total: Sums = {}
        predictions, rows = [], []
        results = (self.program.eval_step(params, batch) for batch in self.batches())
        for result in _read_late(results):
            # As Python floats, whose sum over many batches loses nothing.
            sums = jax.tree.map(float, result.sums)
            total = jax.tree.map(lambda x, y: x + y, total, sums) if total else sums
            real = result.rows >= 0
            predictions.append(jax.tree.map(lambda x, real=real: x[real], result.predictions))
            rows.append(result.rows[real])
        joined = jax.tree.map(lambda *parts: np.concatenate(parts), *predictions)
        numbers = np.concatenate(rows)
        return {name: HeadResult(sums, joined.get(name), numbers) for name, sums in total.items()}

    @property
    def _batch_size(self) -> int:
        return self.data.validation.batch_size


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
    """The metrics of a head.

    Register a function for another kind of head: `@head_metrics.register`.

    Args:
        head: The head's description.
        result: Its results on the validation rows.
        data: The data with those rows.

    Returns:
        The metrics by name.
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
    predicted, references, weights, _ = result.predictions
    return scores.classification_scores(predicted, references, weights, head.num_labels)


@head_metrics.register
def _(head: MultiLabel, result, data):
    predicted, references, weights, _ = result.predictions
    labels = data.labels or tuple(map(str, range(head.num_labels)))
    return scores.multi_label_scores(predicted, references, weights, labels)


@head_metrics.register
def _(head: MultipleChoice, result, data):
    return {"accuracy": result.accuracy}


@head_metrics.register
def _(head: Regression, result, data):
    predicted, references, weights, _ = result.predictions
    return {
        "squared_error": result.loss,
        **scores.regression_scores(predicted, references, weights),
    }


@head_metrics.register
def _(head: Contrastive, result, data):
    predicted, references, weights, _ = result.predictions
    return scores.retrieval_scores(predicted, references, weights)


@head_metrics.register
def _(head: TokenClassification, result, data):
    predicted, references, weights, _ = result.predictions
    tags = data.labels or tuple(map(str, range(head.num_labels)))
    return scores.tag_scores(predicted, references, weights, tags)


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
    spans, scores_of_rows = result.predictions.predicted, result.predictions.scores
    for row, span, (score, none) in zip(result.rows, spans, scores_of_rows, strict=True):
        question = examples.windows[row].question
        nothing[question] = min(none, nothing.get(question, math.inf))
        if question not in best or score > best[question][0]:
            best[question] = score, examples.answer(row, *span)
    texts = [text if score > nothing[q] else "" for q, (score, text) in best.items()]
    return texts, [examples.questions[question].answers for question in best]


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))
