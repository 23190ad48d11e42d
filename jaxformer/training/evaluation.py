"""The validation loss of a training state."""

import math
from typing import Any

from jaxformer.config import Config
from jaxformer.data import Dataset
from jaxformer.training.processes import DeviceBatches, local_rows
from jaxformer.training.step import TrainProgram


def evaluate(config: Config, program: TrainProgram, state: Any, dataset: Dataset) -> dict:
    """Measures a state on the validation rows, the same ones each time.

    Args:
        config: The experiment.
        program: The training program.
        state: The training state; its averaged parameters count, where it has them.
        dataset: The validation side.

    Returns:
        ``loss`` (nats per token), ``perplexity``, ``bits_per_byte`` (which does not depend on the
        tokenizer) and ``accuracy`` (share of the tokens predicted first).
    """
    shape = (config.data.batch_size, config.data.sequence_length)
    batches = dataset.epoch(
        rows=local_rows(program.batch_sharding, shape),
        max_batches=config.data.max_validation_batches,
    )
    loss = weight = correct = 0.0
    pending = None
    for batch in DeviceBatches(batches, program.batch_sharding, shape):
        sums, pending = pending, program.eval_step(state, batch)
        if sums is not None:  # read one batch late, so that the devices always have the next one
            loss, weight, correct = _add(loss, weight, correct, sums)
    loss, weight, correct = _add(loss, weight, correct, pending)
    mean = loss / max(weight, 1.0)
    tokens_per_byte = dataset.stream.num_targets / dataset.stream.num_bytes
    return {
        "loss": mean,
        "perplexity": math.exp(min(mean, 700.0)),
        "bits_per_byte": mean / math.log(2) * tokens_per_byte,
        "accuracy": correct / max(weight, 1.0),
    }


def _add(loss: float, weight: float, correct: float, sums: Any) -> tuple[float, float, float]:
    return loss + float(sums.loss), weight + float(sums.weight), correct + float(sums.correct)
