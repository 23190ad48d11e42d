"""The training loss, whose terms are weighted means over a batch, and checks of batches."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from jaxformer.config.train import Distillation
from jaxformer.errors import ArgumentError
from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.functional.losses.distillation import cosine_distance, soft_divergence
from jaxformer.functional.losses.terms import without_terms
from jaxformer.models.heads.base import Batch, LossOptions, Predictions, Shapes
from jaxformer.models.model import Model, ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters

Sums = dict[str, LossSums]
"""The sums of each term over a batch or micro-batch, by the name of the term."""
COSINE = "cosine"
"""The term for the distance between hidden states."""


class Loss:
    """The sum over a model's heads of their mean losses."""

    def __init__(self, heads: Sequence[str]):
        """Takes the names of the heads; the first one determines the accuracy of the run."""
        self.heads = tuple(heads)
        self.parameters: Parameters = {}
        """Further arrays on the mesh that the terms need and that are not trained."""

    def batch_spec(self, model: ModelConfig, rows: int, lengths: Mapping[str, int]) -> Shapes:
        """The arrays of a batch, by name; see `ModelConfig.batch_spec`."""
        return model.batch_spec(rows, lengths)

    def check_batch(self, model: ModelConfig, batch: Batch) -> None:
        """Checks a batch while the step is traced."""
        check_batch(model, batch)

    def __call__(
        self,
        model: Model,
        parameters: Parameters,
        batch: Batch,
        options: LossOptions,
        key: jax.Array | None,
    ) -> Sums:
        """Computes the sums of every term over a micro-batch."""
        del parameters
        _, sums = model.loss(batch, options, key)
        return sums

    def weights(self, model: Model, batch: Batch) -> dict[str, jax.Array]:
        """Computes the total weight of every term, from the batch only."""
        return model.loss_weights(batch)

    def total(self, means: dict[str, jax.Array]) -> jax.Array:
        """Computes the value to minimize from the means of the terms."""
        return sum(means.values())

    def evaluate(
        self, model: Model, batch: Batch, options: LossOptions
    ) -> tuple[Sums, dict[str, Predictions]]:
        """Computes the sums to measure on a validation batch, without dropout."""
        outputs, sums = model.loss(batch, options)
        return sums, model.predictions(outputs, batch)

    def validation(self, sums: Sums) -> dict[str, float] | None:
        """Returns the validation metrics, or None if the heads define them (`Head.metrics`)."""
        del sums

    def metrics(self, sums: Sums) -> dict[str, jax.Array]:
        """Returns the loss, the first head's accuracy and weight, and each head's if several."""
        losses = {name: mean(sums[name].loss, sums[name]) for name in self.heads}
        right = {name: mean(sums[name].correct, sums[name]) for name in self.heads}
        first = self.heads[0]
        means = {"loss": sum(losses.values()), "accuracy": right[first]}
        means["tokens"] = sums[first].weight
        if len(self.heads) > 1:
            means |= {f"{name}_loss": loss for name, loss in losses.items()}
            means |= {f"{name}_accuracy": share for name, share in right.items()}
        return means


class DistillationLoss(Loss):
    """The losses of the heads, and the distances to a teacher's predictions and hidden states."""

    def __init__(
        self,
        heads: Sequence[str],
        settings: Distillation,
        teacher: AbstractModel,
        parameters: Parameters,
        common: Sequence[str],
    ):
        """Takes the teacher and its parameters."""
        super().__init__(heads)
        self.parameters = parameters
        self._settings, self._teacher = settings, teacher
        self._soft = {name: f"soft_{name}" for name in common} if settings.soft_weight else {}

    def __call__(self, model, parameters, batch, options, key):
        outputs, sums = model.loss(batch, options, key)
        _, head_keys = model.dropout_keys(key)
        teacher = self._teacher.module(jax.lax.stop_gradient(parameters))
        with without_terms():
            targets = teacher.outputs(batch)
        valid = _real_tokens(model, batch)
        for name, term in self._soft.items():
            head = model.heads[name]
            divergences = soft_divergence(
                head.scores(head.read(outputs), head_keys[name]),
                teacher.heads[name].scores(teacher.heads[name].read(targets)),
                temperature=self._settings.temperature,
            )
            sums[term] = weighted(divergences, head.soft_weights(batch, valid))
        if self._settings.cosine_weight:
            sums[COSINE] = weighted(cosine_distance(outputs.hidden, targets.hidden), valid)
        return sums

    def weights(self, model, batch):
        weights = model.loss_weights(batch)
        valid = _real_tokens(model, batch)
        for name, term in self._soft.items():
            weights[term] = jnp.sum(model.heads[name].soft_weights(batch, valid))
        if self._settings.cosine_weight:
            weights[COSINE] = jnp.sum(valid)
        return weights

    def total(self, means):
        hard = sum(means[name] for name in self.heads)
        soft = sum(means[term] for term in self._soft.values())
        weights = self._settings
        total = weights.hard_weight * hard + weights.soft_weight * soft
        return total + weights.cosine_weight * means.get(COSINE, 0.0)

    def metrics(self, sums):
        """Returns the metrics of the heads, as in evaluation, and the means of the other terms."""
        means = {name: mean(term.loss, term) for name, term in sums.items()}
        values = super().metrics(sums)
        if self._soft:
            values["soft_loss"] = sum(means[term] for term in self._soft.values())
        if COSINE in means:
            values["cosine_loss"] = means[COSINE]
        return values | {"total_loss": self.total(means)}


def mean(total: jax.Array, term: LossSums) -> jax.Array:
    """Divides a sum by the weight of its term; 0 if the weight is 0."""
    return total / jnp.maximum(term.weight, 1.0)


def weighted(losses: jax.Array, weights: jax.Array) -> LossSums:
    """Returns the weighted sum of losses, and the sum of the weights."""
    zero = jnp.zeros((), jnp.float32)
    return LossSums(jnp.sum(losses * weights), jnp.sum(weights), zero, zero)


def _real_tokens(model: Model, batch: Batch) -> jax.Array:
    """Returns float32 `[B, T]`: 1 at real tokens that the heads read."""
    valid = model.valid(batch)
    if valid is None:
        shape = jax.eval_shape(model.outputs, batch).hidden.shape[:2]
        return jnp.ones(shape, jnp.float32)
    return valid.astype(jnp.float32)


def check_batch(config: ModelConfig, batch: Batch) -> None:
    """Checks the names, the shapes and the dtypes of the arrays that a model and its heads read.

    Raises:
        ArgumentError: An array is missing or has the wrong dtype; the message names it and its
            reader.
        AssertionError: The axes of an array do not match the model or the rest of the batch.
    """
    readers = dict.fromkeys(config.required, "the model")
    if "decoder_inputs" in readers:
        readers["decoder_inputs"] = "the decoder"
    for head in config.heads:
        readers |= dict.fromkeys(head.reads(1, 1), f"the head {head.name}")
    for name, reader in readers.items():
        if name not in batch:
            raise ArgumentError(
                f"batch: {name}, which {reader} reads, is missing; the batch contains "
                f"{', '.join(batch)}"
            )
    sides = [name for name in config.required if name not in ("images", "spectrograms")]
    if sides:
        assert_axes(**{name: (batch[name], f"B {name}") for name in sides})
    lengths = config.batch_lengths(batch)
    for name, expected in config.batch_spec(len(batch[config.required[0]]), lengths).items():
        if name in batch:
            _check_array(name, batch[name], expected, readers.get(name, "the model"))


def _check_array(name: str, array: jax.Array, expected: jax.ShapeDtypeStruct, reader: str) -> None:
    what = f"batch: {name}, which {reader} reads,"
    assert_axes(**{what: (array, " ".join(map(str, expected.shape)))})
    kinds = (
        (jnp.bool_, "true or false"),
        (jnp.integer, "integers"),
        (jnp.floating, "floating-point numbers"),
    )
    known, kind = next(pair for pair in kinds if jnp.issubdtype(expected.dtype, pair[0]))
    if not jnp.issubdtype(array.dtype, known):
        raise ArgumentError(f"{what} has dtype {array.dtype}: must be {kind}")
