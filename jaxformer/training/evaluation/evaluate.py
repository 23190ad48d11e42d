"""Evaluation on the validation rows: the loss, and the metrics of each kind of head."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxformer.data import Dataset, Datasets
from jaxformer.data.tasks.text_to_text import TextToTextExamples
from jaxformer.distributed.processes import DeviceBatches, local_rows
from jaxformer.models import Head, Parameters
from jaxformer.models.heads.base import HeadResult
from jaxformer.training.evaluation.conclusion import Conclusion
from jaxformer.training.step import Sums, TrainProgram

_MOST_BATCHES = 50


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
        """The metrics of some parameters."""
        results = self.measure(params)
        loss = self.program.loss
        own = loss.validation({name: result.sums for name, result in results.items()})
        if own is not None:
            return own
        found = {}
        for head in self.program.model.heads:
            result = results[head.name]
            found[head.name] = head.metrics(result, self.data) if result.sums.weight > 0 else {}
        return {"loss": sum(result.loss for result in results.values())} | _of_heads(found)

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
            trivial = trivial_answers(heads, data.train, data.validation, most)
        examples = data.validation.examples
        rows = len(examples) if most is None else min(len(examples), most * self._batch_size)
        if not isinstance(examples, TextToTextExamples):
            return Conclusion(step, rows, metrics, trivial, [])
        from jaxformer.training.evaluation.generated_text import write_texts

        say(f"writing {examples.config.product[1]} for {rows} validation sources")
        texts = write_texts(self.program, params, self.batches(), examples, data.tokenizer)
        references = [each.references for each in texts]
        metrics |= examples.config.metric.scores([each.text for each in texts], references)
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
    """Fetches each result after the next step is dispatched, so that the devices never wait."""
    pending = None
    for result in results:
        if pending is not None:
            yield jax.device_get(pending)
        pending = result
    if pending is not None:
        yield jax.device_get(pending)


def trivial_answers(
    heads: Sequence[Head], train: Dataset, validation: Dataset, max_batches: int | None
) -> dict[str, float]:
    """The validation metrics of the heads' best constant predictions, see `Head.baseline`."""
    seen = list(train.epoch(max_batches=_MOST_BATCHES))
    held_out = list(validation.epoch(max_batches=max_batches))
    return _of_heads({head.name: head.baseline(seen, held_out) for head in heads})


def _of_heads(found: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """The metrics of a model: those of its head, or of each of several as "<head>_<name>"."""
    several = len(found) > 1
    return {
        f"{head}_{name}" if several else name: value
        for head, own in found.items()
        for name, value in own.items()
    }
