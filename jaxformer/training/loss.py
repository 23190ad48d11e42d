"""What a run minimises: terms that are means over the weights of a whole batch."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.functional.losses import LossSums
from jaxformer.models.heads.base import LossOptions
from jaxformer.models.model import Model
from jaxformer.models.parameters import Parameters

Batch = dict[str, jax.Array]
Sums = dict[str, LossSums]
"""A term's sums over a batch, or over a part of one, by the name of the term."""


class Loss:
    """The sum over a model's heads of their mean losses."""

    def __init__(self, heads: Sequence[str]):
        """Takes the names of the heads; the first one's accuracy is the run's."""
        self.heads = tuple(heads)
        self.parameters: Parameters = {}
        """Arrays on the mesh that the terms need besides the model's, and the run leaves alone."""

    def weights(self, model: Model, batch: Batch) -> dict[str, jax.Array]:
        """Every term's total weight, from the batch alone."""
        return model.weights(batch)

    def sums(
        self,
        model: Model,
        parameters: Parameters,
        batch: Batch,
        options: LossOptions,
        key: jax.Array,
    ) -> Sums:
        """Every term's sums over a part of a batch.

        Args:
            model: What learns.
            parameters: `self.parameters`, as the arguments of the jitted step that they are.
            batch: Arrays by name, rows first.
            options: How token losses are computed.
            key: The dropout key.
        """
        del parameters
        return model.losses(batch, options, key)

    def total(self, means: dict[str, jax.Array]) -> jax.Array:
        """What is minimised, from the terms' means."""
        return sum(means.values())

    def metrics(self, sums: Sums) -> dict[str, jax.Array]:
        """The loss, and the accuracy and weight of the first head; each head's own if several."""
        losses = {name: mean(sums[name].loss, sums[name]) for name in self.heads}
        right = {name: mean(sums[name].correct, sums[name]) for name in self.heads}
        first = self.heads[0]
        means = {"loss": sum(losses.values()), "accuracy": right[first]}
        means["tokens"] = sums[first].weight
        if len(self.heads) > 1:
            means |= {f"{name}_loss": loss for name, loss in losses.items()}
            means |= {f"{name}_accuracy": share for name, share in right.items()}
        return means


def mean(total: jax.Array, term: LossSums) -> jax.Array:
    """A sum over the weight of its term; 0 where nothing counts."""
    return total / jnp.maximum(term.weight, 1.0)
