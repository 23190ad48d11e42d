"""Evaluates a trained decoder on rows of other lengths than in training."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.data import Batch, Data, DataConfig
from jaxformer.data.tasks.algorithmic import Algorithmic
from jaxformer.errors import ConfigError
from jaxformer.functional.sampling.next_token import token_log_probabilities
from jaxformer.lab.studies.schemes import SCHEMES
from jaxformer.models import AbstractModel, ModelConfig, Parameters
from jaxformer.training.result import TrainResult

_TOKENS_AT_A_TIME = 4096


class Scores(NamedTuple):
    """The scores of a model on some rows."""

    loss: float
    """Mean cross-entropy of the predicted tokens, in nats."""
    accuracy: float
    """Fraction of tokens that the model predicts correctly."""
    exact_match: float
    """Fraction of rows in which every token is predicted correctly. These are exactly the rows that
    greedy decoding generates without an error.
    """


def measure(
    factors: Sequence[int], rows: int, schemes: Sequence[str], result: TrainResult
) -> dict[str, Any]:
    """Evaluates a trained model with each of the schemes at multiples of the training length.

    For text, the `rows` of the longest length are split into shorter ones, so that the same tokens
    are predicted at each length; for an algorithmic task, each length has `rows` rows.
    """
    saved = SavedRun(result.folder)
    parameters = jax.device_put(saved.read(saved.shapes))
    data, length = saved.config.data, saved.config.data.lengths["inputs"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in schemes}
    for factor, (size, batches) in _batches(data, result.folder, factors, rows).items():
        for name in schemes:
            position = SCHEMES[name].stretched(saved.model.position, factor, length)
            model = replace(saved.model, position=position)
            row = {"factor": factor, "length": size} | _scored(model, parameters, batches)
            found[name].append(row)
    return found


def _batches(
    data: Data, folder: Path, factors: Sequence[int], count: int
) -> dict[int, tuple[int, list[Batch]]]:
    """Returns the length and the batches of rows for each factor."""
    found = {}
    if isinstance(data, Algorithmic):
        for factor in factors:
            size = factor * data.length
            rows = data.of_length(size, count).prepare(folder).validation
            own = rows.examples.config.lengths["inputs"]
            found[factor] = size, list(rows.epoch(_at_a_time(rows.num_rows, own)))
        return found
    longest = max(factors) * data.sequence_length
    text = validation_text(replace(data, sequence_length=longest), folder, count)
    for factor in factors:
        size = factor * data.sequence_length
        found[factor] = size, in_batches(cut(text, size))
    return found


def validation_text(data: DataConfig, folder: Path, rows: int) -> Batch:
    """Returns whole rows of validation text, spaced evenly."""
    examples = data.prepare_validation(folder).validation.examples
    whole = len(examples) - 1
    if whole < 1:
        raise ConfigError(
            f"the validation text has fewer than {data.sequence_length} tokens, the longest row: "
            "lower --factors or --text-length"
        )
    count = min(rows, whole)
    rng = np.random.default_rng(0)
    read = [examples.read(index * whole // count, rng) for index in range(count)]
    return {name: np.stack([row[name] for row in read]) for name in read[0]}


def cut(batch: Batch, length: int) -> Batch:
    """Splits rows [B, k T] into rows [B k, T] with the same tokens in the same order."""
    return {name: array.reshape(-1, length) for name, array in batch.items()}


def in_batches(batch: Batch) -> list[Batch]:
    """Splits rows [B, T] into batches with about the same number of tokens."""
    rows, length = batch["inputs"].shape
    size = _at_a_time(rows, length)
    blank = {name: np.zeros_like(array[:1]) for name, array in batch.items()}
    missing = -rows % size
    full = {name: np.concatenate([a, *[blank[name]] * missing]) for name, a in batch.items()}
    return [{n: a[i : i + size] for n, a in full.items()} for i in range(0, rows, size)]


def score(model: ModelConfig, parameters: Parameters, batches: Iterable[Batch]) -> Scores:
    """Evaluates a model, whose positional scheme may differ from training, on batches.

    Batches have "targets" and "weights" (0 or 1), [B, T]; rows of weight 0 do not count.
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
    """Returns the loss and the numbers of correct tokens, tokens, correct rows and rows."""
    logits = _structure(model).module(parameters).scores(batch)["language_model"]
    counted = batch["weights"] > 0
    losses = -token_log_probabilities(logits, batch["targets"])
    right = (jnp.argmax(logits, axis=-1) == batch["targets"]) | ~counted
    rows = jnp.any(counted, axis=1)
    whole = jnp.all(right, axis=1) & rows
    sums = map(jnp.sum, (right & counted, counted, whole, rows))
    return jnp.stack([jnp.sum(losses, where=counted), *sums]).astype(jnp.float32)


def _at_a_time(rows: int, length: int) -> int:
    """Returns how many rows of this length make a batch of about the usual number of tokens."""
    return max(1, min(rows, _TOKENS_AT_A_TIME // length))
