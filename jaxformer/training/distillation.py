"""Learning from a teacher: its soft predictions and its hidden states besides the true targets."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.errors import check_field
from jaxformer.functional.distillation import cosine_distance, soft_divergence
from jaxformer.functional.losses import LossSums
from jaxformer.models.family import Family
from jaxformer.models.heads import Batch, States
from jaxformer.models.parameters import Parameters, Template
from jaxformer.paths import local_path
from jaxformer.training.loss import Loss, mean

COSINE = "cosine"
"""The term for the hidden states."""


@dataclass(frozen=True)
class Distillation:
    r"""A finished run as the teacher of this one.

    .. math::
      L = w_{soft}\, \tau^2\, \mathrm{KL}(p^{teacher}_\tau \,\|\, p^{student}_\tau)
          + w_{hard}\, L_{heads} + w_{cos}\, (1 - \cos(h^{student}, h^{teacher}))

    Each term is a mean over the places where it counts. The cosine counts at all real tokens. The
    soft predictions of masked tokens do so too, masked or not, as in DistilBERT's released
    training: the teacher has something to say about each. Those of a language model count where
    the batch weighs the next token, those of a classifier where it weighs the label: elsewhere (a
    prompt, padding) nothing is predicted when the student is used.

    The teacher reads the same batches, without dropout. Its averaged parameters are taken, where
    it has them.

    References:
      Sanh et al., DistilBERT (https://arxiv.org/abs/1910.01108);
      Hinton et al., Distilling the Knowledge in a Neural Network
      (https://arxiv.org/abs/1503.02531).
    """

    teacher: str
    """The teacher's run folder, whose newest checkpoint is read, or RUN/checkpoints/STEP."""
    temperature: float = 2.0
    """What both sides' logits are divided by in the soft predictions."""
    soft_weight: float = 5.0
    """Weight of the divergence from the teacher's soft predictions."""
    hard_weight: float = 2.0
    """Weight of the heads' own losses."""
    cosine_weight: float = 1.0
    """Weight of the hidden states' distance; it needs a teacher of the same width. 0: no term."""

    def __post_init__(self):
        local_path(self.teacher, "train.distillation.teacher")
        check_field(self, "temperature", self.temperature > 0, "positive")
        for name in ("soft_weight", "hard_weight", "cosine_weight"):
            check_field(self, name, getattr(self, name) >= 0, "0 or more")
        some = self.soft_weight > 0 or self.cosine_weight > 0
        check_field(self, "soft_weight", some, "positive, or cosine_weight be: nothing is learned")


class DistillationLoss(Loss):
    """The heads' losses, the divergence from a teacher's predictions, and from its states."""

    def __init__(
        self,
        heads: Sequence[str],
        settings: Distillation,
        teacher: Template,
        parameters: Parameters,
        common: Sequence[str],
    ):
        """Takes the teacher.

        Args:
          heads: names of the student's heads.
          settings: the weights of the terms.
          teacher: the structure of the teacher.
          parameters: the teacher's, on the mesh.
          common: names of the heads whose predictions the student learns.
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


def _cosine_sums(states: States, true_states: States, valid: jax.Array) -> LossSums:
    return _sums(cosine_distance(states.hidden, true_states.hidden), valid)


def _real_tokens(model: Family, batch: Batch) -> jax.Array:
    """float32 `[B, T]`: 1 at the real tokens among those whose states the heads read."""
    valid = model.valid(batch)
    if valid is None:
        shape = jax.eval_shape(model.states, batch).hidden.shape[:2]
        return jnp.ones(shape, jnp.float32)
    return valid.astype(jnp.float32)


def _sums(losses: jax.Array, weights: jax.Array) -> LossSums:
    zero = jnp.zeros((), jnp.float32)
    return LossSums(jnp.sum(losses * weights), jnp.sum(weights), zero, zero)
