"""Learning from a teacher: its soft predictions and its hidden states besides the true targets."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.config.train import Distillation
from jaxformer.functional.distillation import cosine_distance, soft_divergence
from jaxformer.functional.losses import LossSums
from jaxformer.models.heads.base import Batch, ModelOutput
from jaxformer.models.model import Model
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.training.loss import Loss, mean

COSINE = "cosine"
"""The term for the hidden states."""


class DistillationLoss(Loss):
    """The heads' losses, the divergence from a teacher's predictions, and from its states."""

    def __init__(
        self,
        heads: Sequence[str],
        settings: Distillation,
        teacher: AbstractModel,
        parameters: Parameters,
        common: Sequence[str],
    ):
        """Takes the teacher.

        Args:
            heads: Names of the student's heads.
            settings: The weights of the terms.
            teacher: The structure of the teacher.
            parameters: The teacher's, on the mesh.
            common: Names of the heads whose predictions the student learns.
        """
        super().__init__(heads)
        self.parameters = parameters
        self._settings, self._teacher = settings, teacher
        self._soft = {name: f"soft_{name}" for name in common} if settings.soft_weight else {}

    def weights(self, model, batch):
        valid = _real_tokens(model, batch)
        soft = {
            term: jnp.sum(model.heads[name].soft_weights(batch, valid))
            for name, term in self._soft.items()
        }
        return model.weights(batch) | soft | self._cosine_term(lambda: jnp.sum(valid))

    def sums(self, model, parameters, batch, options, key):
        states, keys = model.states_and_keys(batch, key)
        teacher = self._teacher.module(jax.lax.stop_gradient(parameters))
        true_states = teacher.states(batch)
        valid = _real_tokens(model, batch)

        def soft(name: str) -> LossSums:
            head = model.heads[name]
            scores = head.scores(states, keys[name])
            true_scores = teacher.heads[name].scores(true_states)
            tau = self._settings.temperature
            losses = soft_divergence(scores, true_scores, temperature=tau)
            return _sums(losses, head.soft_weights(batch, valid))

        return (
            model.losses_of(states, keys, batch, options)
            | {term: soft(name) for name, term in self._soft.items()}
            | self._cosine_term(lambda: _cosine_sums(states, true_states, valid))
        )

    def total(self, means):
        hard = sum(means[name] for name in self.heads)
        soft = sum(means[term] for term in self._soft.values())
        weights = self._settings
        total = weights.hard_weight * hard + weights.soft_weight * soft
        return total + weights.cosine_weight * means.get(COSINE, 0.0)

    def metrics(self, sums):
        """Those of the heads' own loss, which evaluation measures too, and of the other terms."""
        means = {name: mean(term.loss, term) for name, term in sums.items()}
        values = super().metrics(sums)
        if self._soft:
            values["soft_loss"] = sum(means[term] for term in self._soft.values())
        if COSINE in means:
            values["cosine_loss"] = means[COSINE]
        return values | {"total_loss": self.total(means)}

    def _cosine_term(self, make) -> dict:
        return {COSINE: make()} if self._settings.cosine_weight else {}


def _cosine_sums(states: ModelOutput, true_states: ModelOutput, valid: jax.Array) -> LossSums:
    return _sums(cosine_distance(states.hidden, true_states.hidden), valid)


def _real_tokens(model: Model, batch: Batch) -> jax.Array:
    """float32 `[B, T]`: 1 at the real tokens among those whose states the heads read."""
    valid = model.valid(batch)
    if valid is None:
        shape = jax.eval_shape(model.states, batch).hidden.shape[:2]
        return jnp.ones(shape, jnp.float32)
    return valid.astype(jnp.float32)


def _sums(losses: jax.Array, weights: jax.Array) -> LossSums:
    zero = jnp.zeros((), jnp.float32)
    return LossSums(jnp.sum(losses * weights), jnp.sum(weights), zero, zero)
