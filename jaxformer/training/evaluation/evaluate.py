"""Evaluation on validation rows: the loss, and the metrics of each kind of head."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxformer.data import Datasets
from jaxformer.data.tasks.text_to_text import WritingExamples
from jaxformer.distributed.processes import device_batches, local_rows
from jaxformer.models import Parameters
from jaxformer.models.heads.base import Batch, HeadResult
from jaxformer.training.evaluation.conclusion import Conclusion
from jaxformer.training.step import Sums, TrainProgram

_MOST_BATCHES = 50
"""The number of training batches for choosing the constant predictions."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates parameters on a fixed set of validation rows."""

    program: TrainProgram
    data: Datasets
    """The data, whose validation split is read."""
    max_batches: int | None
    """Maximum number of batches of the training size to read; None reads all rows."""

    def evaluate(self, params: Parameters) -> dict[str, float]:
        """Computes the metrics for some parameters."""
        results = self.measure(params)
        loss = self.program.loss
        own = loss.validation({name: result.sums for name, result in results.items()})
        if own is not None:
            return own
        found = {}
        for head in self.program.model.heads:
            result = results[head.name]
            found[head.name] = head.metrics(result, self.data) if result.sums.weight > 0 else {}
        return {"loss": sum(result.loss for result in results.values())} | _prefixed_by_head(found)

    def conclude(
        self,
        params: Parameters,
        step: int,
        say: Callable[[str], None],
        metrics: dict[str, float] | None = None,
    ) -> Conclusion:
        """Runs the final evaluation: `evaluate`, the baseline and generated texts."""
        data, most = self.data, self.max_batches
        metrics = dict(metrics or self.evaluate(params))
        trivial = {}
        if data.train is not None:
            own = self.program.loss.heads
            heads = [head for head in self.program.model.heads if head.name in own]
            seen = list(data.train.epoch(max_batches=_MOST_BATCHES))
            held_out = list(data.validation.epoch(max_batches=most))
            found = {head.name: head.baseline(seen, held_out) for head in heads}
            trivial = _prefixed_by_head(found)
        examples = data.validation.examples
        rows = len(examples) if most is None else min(len(examples), most * self._batch_size)
        if not isinstance(examples, WritingExamples):
            return Conclusion(step, rows, metrics, trivial, [])
        from jaxformer.training.evaluation.generated_text import generate_texts

        say(f"writing {examples.config.product[1]} for {rows} validation sources")
        texts = generate_texts(self.program, params, self.batches(), examples, data.tokenizer)
        references = [each.references for each in texts]
        metrics |= examples.config.metric.scores([each.text for each in texts], references)
        return Conclusion(step, rows, metrics, trivial, texts)

    def batches(self) -> Iterator[Batch]:
        """Yields batches of validation rows on the devices, in the micro-batch size of training."""
        parts = self.program.train.gradient_accumulation
        most = self.max_batches
        sharding = self.program.batch_sharding
        num_rows = self._batch_size // parts
        batches = self.data.validation.epoch(
            num_rows,
            rows=local_rows(sharding, num_rows),
            max_batches=None if most is None else most * parts,
        )
        return device_batches(batches, sharding, num_rows)

    def measure(self, params: Parameters) -> dict[str, HeadResult]:
        """Computes the results of every head on the validation rows, on every process."""
        total: Sums = {}
        predictions, rows = [], []
        results = (self.program.eval_step(params, batch) for batch in self.batches())
        for result in _read_late(results):
            # As Python floats, so that sums over many batches keep their precision.
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
    """Fetches each result after dispatching the next step, so that the devices never wait."""
    pending = None
    for result in results:
        if pending is not None:
            yield jax.device_get(pending)
        pending = result
    if pending is not None:
        yield jax.device_get(pending)


def _prefixed_by_head(found: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Returns the metrics of a model, prefixed with "<head>_" if it has several heads."""
    several = len(found) > 1
    return {
        f"{head}_{name}" if several else name: value
        for head, own in found.items()
        for name, value in own.items()
    }
