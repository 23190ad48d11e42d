"""Preference losses on pairs of answers or on individually rated answers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.config.train import DPO, KTO
from jaxformer.data.chat.preferences.unpaired import DESIRABLE
from jaxformer.functional.arrays import place, spec_of
from jaxformer.functional.losses.preferences import dpo_loss, kto_loss
from jaxformer.models.heads.base import Batch, LossOptions
from jaxformer.models.model import Model
from jaxformer.training.loss import Loss, check_batch, mean, weighted

HEAD = "language_model"
"""The head whose log-probabilities are compared."""
REFERENCE = "reference_logps"
"""The array of a batch with the reference's log-probabilities of both answers, float32 `[B, 2]`."""

# Terms: means over pairs, and means over the tokens of the answers of one side.
_PAIRS = "preference"
_CHOSEN_REWARD = "chosen_reward"
_REJECTED_REWARD = "rejected_reward"
_CHOSEN, _REJECTED = "chosen", "rejected"
_DIVERGENCE = "divergence"


class Answers(NamedTuple):
    """The answers of a batch, each float32 `[B, 2]`: chosen and rejected, or an answer and the
    answer to another prompt.
    """

    logps: jax.Array
    """The log-probability of each answer, summed over its tokens."""
    lengths: jax.Array
    """The number of tokens of each answer; 0 in padding rows."""


def answers(
    model: Model, batch: Batch, options: LossOptions, key: jax.Array | None = None
) -> Answers:
    """Computes the log-probabilities of both answers to each prompt, by a model with `HEAD`.

    The arrays of the batch are `[B, 2, T]`, see `PreferenceData`.
    """
    sequences = as_sequences(batch)
    outputs_key, _ = model.dropout_keys(key)
    outputs = model.outputs(sequences, outputs_key)
    log_probs = model.heads[HEAD].log_probabilities(
        outputs, sequences["targets"], options.chunk_size
    )
    weights = sequences["weights"]
    # Where the weight is 0, the target and its log-probability are arbitrary.
    counted = jnp.where(weights > 0, log_probs, 0.0)
    like = spec_of(batch["weights"])
    return Answers(*(_reshaped(jnp.sum(x, axis=1), (-1, 2), like) for x in (counted, weights)))


def as_sequences(batch: Batch) -> dict[str, jax.Array]:
    """Reshapes the arrays `[B, 2, T]` of pairs to `[2 B, T]`, which a model reads; drops others."""
    return {
        name: _reshaped(array, (-1, array.shape[2]), spec_of(array))
        for name, array in batch.items()
        if array.ndim == 3 and array.shape[1] == 2
    }


class PreferenceLoss(Loss):
    """`dpo_loss` of the language model's head against the batch's reference log-probabilities."""

    def __init__(self, settings: DPO | KTO):
        """Takes the settings; the losses of the heads are not used."""
        super().__init__(())
        self._settings = settings

    def batch_spec(self, model, rows, lengths):
        single = super().batch_spec(model, rows, lengths)
        pairs = {
            name: jax.ShapeDtypeStruct((rows, 2, *x.shape[1:]), x.dtype)
            for name, x in single.items()
        }
        return pairs | {REFERENCE: jax.ShapeDtypeStruct((rows, 2), jnp.float32)}

    def check_batch(self, model, batch):
        check_batch(model, as_sequences(batch))

    def __call__(self, model, parameters, batch, options, key):
        del parameters
        settings = self._settings
        found = answers(model, batch, options, None if settings.disable_dropout else key)
        pairs = dpo_loss(
            *_sides(found.logps),
            *_sides(batch[REFERENCE]),
            beta=settings.beta,
            loss_type=settings.loss_type,
            label_smoothing=settings.label_smoothing,
            chosen_lengths=found.lengths[:, 0].astype(jnp.int32),
            rejected_lengths=found.lengths[:, 1].astype(jnp.int32),
        )
        right = (pairs.chosen_rewards > pairs.rejected_rewards).astype(jnp.float32)
        weights = _pair_weights(found.lengths)
        sums = {
            _PAIRS: weighted(pairs.losses, weights)._replace(correct=jnp.sum(right * weights)),
            _CHOSEN_REWARD: weighted(pairs.chosen_rewards, weights),
            _REJECTED_REWARD: weighted(pairs.rejected_rewards, weights),
        }
        for side, logps, lengths in zip(
            (_CHOSEN, _REJECTED), _sides(found.logps), _sides(found.lengths), strict=True
        ):
            sums[side] = weighted(-logps, jnp.ones_like(logps))._replace(weight=jnp.sum(lengths))
        return sums

    def weights(self, model, batch):
        del model
        lengths = jnp.sum(batch["weights"], axis=2)
        count = jnp.sum(_pair_weights(lengths))
        of_tokens = dict(zip((_CHOSEN, _REJECTED), _sides(jnp.sum(lengths, axis=0)), strict=True))
        return dict.fromkeys((_PAIRS, _CHOSEN_REWARD, _REJECTED_REWARD), count) | of_tokens

    def total(self, means):
        return means[_PAIRS] + self._settings.sft_weight * means[_CHOSEN]

    def evaluate(self, model, batch, options):
        return self(model, {}, batch, options, None), {}

    def validation(self, sums):
        values = self.metrics(sums)
        del values["tokens"]
        return {name: float(value) for name, value in values.items()}

    def metrics(self, sums):
        """Returns the loss and means over the pairs or answers."""
        means = {name: mean(term.loss, term) for name, term in sums.items()}
        pairs, chosen, rejected = (sums[name] for name in (_PAIRS, _CHOSEN, _REJECTED))
        return {
            "loss": self.total(means),
            "accuracy": mean(pairs.correct, pairs),
            "margin": means[_CHOSEN_REWARD] - means[_REJECTED_REWARD],
            "chosen_reward": means[_CHOSEN_REWARD],
            "rejected_reward": means[_REJECTED_REWARD],
            "chosen_logps": mean(-chosen.loss, sums[_CHOSEN_REWARD]),
            "rejected_logps": mean(-rejected.loss, sums[_REJECTED_REWARD]),
            "tokens": chosen.weight + rejected.weight,
        }


class KTOLoss(PreferenceLoss):
    """`kto_loss` of the language model's head against the batch's reference log-probabilities."""

    def batch_spec(self, model, rows, lengths):
        judged = {DESIRABLE: jax.ShapeDtypeStruct((rows,), jnp.int32)}
        return super().batch_spec(model, rows, lengths) | judged

    def __call__(self, model, parameters, batch, options, key):
        del parameters
        settings = self._settings
        found = answers(model, batch, options, None if settings.disable_dropout else key)
        logps, others = _sides(found.logps)
        ref_logps, ref_others = _sides(batch[REFERENCE])
        lengths = found.lengths[:, 0]
        kinds = _kinds(found.lengths, batch[DESIRABLE])
        judged = kto_loss(
            logps,
            ref_logps,
            batch[DESIRABLE] > 0,
            others,
            ref_others,
            beta=settings.beta,
            desirable_weight=settings.desirable_weight,
            undesirable_weight=settings.undesirable_weight,
            valid=kinds[_PAIRS] > 0,
        )
        above = judged.rewards > settings.beta * judged.divergence
        right = (above == (batch[DESIRABLE] > 0)).astype(jnp.float32)
        divergences = jnp.broadcast_to(judged.divergence, judged.losses.shape)
        sums = {
            _PAIRS: weighted(judged.losses, kinds[_PAIRS])._replace(
                correct=jnp.sum(right * kinds[_PAIRS])
            ),
            _DIVERGENCE: weighted(divergences, kinds[_PAIRS]),
            _CHOSEN_REWARD: weighted(judged.rewards, kinds[_CHOSEN]),
            _REJECTED_REWARD: weighted(judged.rewards, kinds[_REJECTED]),
        }
        for kind in (_CHOSEN, _REJECTED):
            tokens = jnp.sum(lengths * kinds[kind])
            sums[kind] = weighted(-logps, kinds[kind])._replace(weight=tokens)
        return sums

    def weights(self, model, batch):
        del model
        lengths = jnp.sum(batch["weights"], axis=2)
        kinds = _kinds(lengths, batch[DESIRABLE])
        counts = {kind: jnp.sum(weights) for kind, weights in kinds.items()}
        tokens = {kind: jnp.sum(lengths[:, 0] * kinds[kind]) for kind in (_CHOSEN, _REJECTED)}
        return tokens | {
            _PAIRS: counts[_PAIRS],
            _DIVERGENCE: counts[_PAIRS],
            _CHOSEN_REWARD: counts[_CHOSEN],
            _REJECTED_REWARD: counts[_REJECTED],
        }

    def total(self, means):
        return means[_PAIRS]

    def metrics(self, sums):
        """Returns the loss and means over the answers; desirable ones are reported as "chosen"."""
        divergence = sums[_DIVERGENCE]
        return super().metrics(sums) | {"divergence": mean(divergence.loss, divergence)}


def preference_loss(settings: DPO | KTO) -> PreferenceLoss:
    """Returns the loss for a preference run."""
    return _LOSSES[type(settings)](settings)


_LOSSES = {DPO: PreferenceLoss, KTO: KTOLoss}


def _kinds(lengths: jax.Array, desirable: jax.Array) -> dict[str, jax.Array]:
    """Returns indicators float32 `[B]` of all, desirable and undesirable answers."""
    real = _pair_weights(lengths)
    good = (desirable > 0).astype(jnp.float32)
    return {_PAIRS: real, _CHOSEN: real * good, _REJECTED: real * (1 - good)}


def _reshaped(x: jax.Array, shape: tuple[int, int], like: PartitionSpec | None) -> jax.Array:
    """Reshapes an array, sharding its rows like those of `like`."""
    rows = x.reshape(shape)
    return rows if like is None else place(rows, PartitionSpec(like[0], None))


def _sides(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Splits `[..., 2]` into the chosen and the rejected side."""
    return x[..., 0], x[..., 1]


def _pair_weights(lengths: jax.Array) -> jax.Array:
    """Returns float32 `[B]` from lengths `[B, 2]`: 1 for a pair, 0 for a padding row."""
    return (jnp.min(lengths, axis=1) > 0).astype(jnp.float32)
