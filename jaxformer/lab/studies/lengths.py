"""Evaluation of a trained decoder on rows of other lengths than those of training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.data import Batch, Data, DataConfig, Dataset
from jaxformer.data.tasks.algorithmic import Algorithmic
from jaxformer.errors import ConfigError
from jaxformer.functional.sampling.next_token import token_log_probabilities
from jaxformer.lab.studies.schemes import SCHEMES
from jaxformer.models import AbstractModel, ModelConfig, Parameters
from jaxformer.training.result import TrainResult

_TOKENS_AT_A_TIME = 4096


class Scores(NamedTuple):
    """What a model predicts of some rows."""

    loss: float
    """Mean cross-entropy of the predicted tokens, in nats."""
    accuracy: float
    """Share of the predicted tokens that score highest."""
    exact_match: float
    """Share of the rows of which every predicted token scores highest. Greedy decoding writes
    exactly these rows without an error: each token follows from right ones."""


@dataclass(frozen=True)
class Lengths:
    """At which multiples of the training length a model is evaluated, and on how much."""

    factors: tuple[int, ...]
    """Multiples of the training length."""
    rows: int
    """Rows: of text, those of the longest length, which are cut for the others, so that the same
    tokens are predicted at each; of an algorithmic task, those of every length."""

    def measure(self, schemes: Sequence[str], result: TrainResult) -> dict[str, Any]:
        """Evaluates a trained model with each of the schemes."""
        saved = SavedRun(result.folder)
        parameters = jax.device_put(saved.read(saved.shapes))
        length = saved.config.data.lengths["inputs"]
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in schemes}
        for factor, (size, batches) in self._batches(saved.config.data, result.folder).items():
            for name in schemes:
                position = SCHEMES[name].stretched(saved.model.position, factor, length)
                model = replace(saved.model, position=position)
                row = {"factor": factor, "length": size} | _scored(model, parameters, batches)
                found[name].append(row)
        return found

    def _batches(self, data: Data, folder: Path) -> dict[int, tuple[int, list[Batch]]]:
        """For each factor the length, and the rows in batches of one shape."""
        if isinstance(data, Algorithmic):
            lengths = {factor: factor * data.length for factor in self.factors}
            return {factor: (n, self._task(data, folder, n)) for factor, n in lengths.items()}
        longest = max(self.factors) * data.sequence_length
        rows = validation_text(replace(data, sequence_length=longest), folder, self.rows)
        lengths = {factor: factor * data.sequence_length for factor in self.factors}
        return {factor: (n, in_batches(cut(rows, n))) for factor, n in lengths.items()}

    def _task(self, data: Algorithmic, folder: Path, length: int) -> list[Batch]:
        rows = data.of_length(length, self.rows).prepare(folder).validation
        return list(rows.epoch(_rows_of(rows)))


def validation_text(data: DataConfig, folder: Path, rows: int) -> Batch:
    """Returns whole rows of validation text, spaced evenly."""
    examples = data.prepare_validation(folder).validation.examples
    whole = len(examples) - 1
    if whole < 1:
        raise ConfigError(
            f"the validation text has less than {data.sequence_length} tokens, the longest row: "
            "lower --factors or --text-length"
        )
    count = min(rows, whole)
    rng = np.random.default_rng(0)
    read = [examples.read(index * whole // count, rng) for index in range(count)]
    return {name: np.stack([row[name] for row in read]) for name in read[0]}


def cut(batch: Batch, length: int) -> Batch:
    """Cuts rows [B, k T] into rows [B k, T], which hold the same tokens in the same order."""
    return {name: array.reshape(-1, length) for name, array in batch.items()}


def in_batches(batch: Batch) -> list[Batch]:
    """Divides rows [B, T] into batches of about as many tokens, whatever their length."""
    rows, length = batch["inputs"].shape
    size = max(1, min(rows, _TOKENS_AT_A_TIME // length))
    blank = {name: np.zeros_like(array[:1]) for name, array in batch.items()}
    missing = -rows % size
    full = {name: np.concatenate([a, *[blank[name]] * missing]) for name, a in batch.items()}
    return [{n: a[i : i + size] for n, a in full.items()} for i in range(0, rows, size)]


def score(model: ModelConfig, parameters: Parameters, batches: Iterable[Batch]) -> Scores:
    """Evaluates a model on batches; rows without a weight do not count.

    Args:
        model: Its configuration, whose positional scheme may differ from that in training.
        parameters: Its parameters.
        batches: What the model reads, and "targets" and "weights" (0 or 1), [B, T].

    Returns:
        The means over all batches.

    Raises:
        ConfigError: The scheme has no code for such positions.
    """
    total = np.zeros(5)
    for batch in batches:
        model.check_lengths({name: batch[name].shape[1] for name in model.required})
        arrays = {name: jnp.asarray(batch[name]) for name in batch if name != "row"}
        total += np.asarray(jax.device_get(_sums(model, parameters, arrays)), np.float64)
    loss, correct, weight, right_rows, rows = total
    return Scores(*(float(x) for x in (loss / weight, correct / weight, right_rows / rows)))


def _scored(model: ModelConfig, parameters: Parameters, batches: list[Batch]) -> dict[str, Any]:
    try:
        return score(model, parameters, batches)._asdict()
    except ConfigError as error:
        return {"refused": str(error)}


@cache
def _structure(model: ModelConfig) -> AbstractModel:
    return AbstractModel(model.build)


@partial(jax.jit, static_argnums=0)
def _sums(model: ModelConfig, parameters: Parameters, batch: Batch) -> jax.Array:
    """Loss, right tokens, tokens, right rows and rows, [5] float32."""
    logits = _structure(model).module(parameters).scores(batch)["language_model"]
    counted = batch["weights"] > 0
    losses = -token_log_probabilities(logits, batch["targets"])
    right = (jnp.argmax(logits, axis=-1) == batch["targets"]) | ~counted
    rows = jnp.any(counted, axis=1)
    return jnp.stack(
        [
            jnp.sum(losses, where=counted),
            jnp.sum(right & counted),
            jnp.sum(counted),
            jnp.sum(jnp.all(right, axis=1) & rows),
            jnp.sum(rows),
        ]
    ).astype(jnp.float32)


def _rows_of(dataset: Dataset) -> int:
    """Rows of a batch with about as many tokens as others."""
    length = dataset.examples.config.lengths["inputs"]
    return max(1, min(dataset.num_rows, _TOKENS_AT_A_TIME // length))
