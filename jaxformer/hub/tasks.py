"""What transformers' classes are asked: their heads, outputs and losses, under its names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.distributed.sharding import on_rows
from jaxformer.errors import DataError
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import (
    Classification,
    Dense,
    Head,
    LanguageModel,
    MaskedLanguageModel,
    ModelOutput,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.labels import Pooling
from jaxformer.models.model import Model

IGNORED = -100  # the label of what does not count
Arrays = Mapping[str, jax.Array]


@dataclass(frozen=True)
class Task:
    """A class of transformers without a head of its own; subclasses have some."""

    repeats_inputs: bool = field(default=False, kw_only=True)
    """Whether a decoder that is given no inputs is asked to repeat those of the encoder."""

    def heads(self, hf_config: HFConfig) -> tuple[Head, ...]:
        """The heads that the class has on top."""
        del hf_config
        return ()

    def outputs(
        self, model: Model, states: ModelOutput, inputs: Arrays, hf_config: HFConfig
    ) -> dict[str, jax.Array]:
        """Scores and, where `inputs` has labels, the loss.

        Args:
            model: Ours, with these heads.
            states: Of the body.
            inputs: Under transformers' names.
            hf_config: The configuration.
        """
        del model, states, inputs, hf_config
        return {}

    def example_labels(
        self, rng: np.random.Generator, inputs: Mapping[str, np.ndarray], hf_config: HFConfig
    ) -> dict[str, np.ndarray]:
        """Labels with which the class has a loss, for inputs that were made up.

        Args:
            rng: Random numbers.
            inputs: The others.
            hf_config: The configuration.
        """
        del rng, inputs, hf_config
        return {}


@dataclass(frozen=True)
class CausalLMTask(Task):
    """The next token at each place."""

    def heads(self, hf_config):
        return (LanguageModel(),)

    def outputs(self, model, states, inputs, hf_config):
        def loss(logits, labels):
            return token_loss(logits[:, :-1], labels[:, 1:])

        return _scored(model.heads["language_model"].scores(states), inputs, loss)

    def example_labels(self, rng, inputs, hf_config):
        labels = _token_labels(rng, inputs, hf_config.values["vocab_size"])
        # The first token after padding is predicted from it: from a state that means nothing.
        real = _real(inputs)
        labels[:, 1:] = np.where(real[:, :-1], labels[:, 1:], IGNORED)
        return {"labels": labels}


@dataclass(frozen=True)
class Seq2SeqLMTask(Task):
    """The decoder's token at each place."""

    def heads(self, hf_config):
        return (LanguageModel(),)

    def outputs(self, model, states, inputs, hf_config):
        return _scored(model.heads["language_model"].scores(states), inputs)

    def example_labels(self, rng, inputs, hf_config):
        size, shape = hf_config.values["vocab_size"], inputs["decoder_input_ids"].shape
        labels = rng.integers(size, size=shape)
        # What is predicted at padding means nothing.
        real = inputs.get("decoder_attention_mask", np.ones(shape)) > 0
        return {"labels": np.where(real & (rng.random(shape) >= 0.2), labels, IGNORED)}


@dataclass(frozen=True)
class MaskedLMTask(Task):
    """The original token at each place."""

    activation: str | None = None
    """The head's nonlinearity whatever "hidden_act" says; None: as it says."""

    def heads(self, hf_config):
        same = self.activation == hf_config.take("hidden_act", self.activation)
        return (MaskedLanguageModel(activation=None if same else self.activation),)

    def outputs(self, model, states, inputs, hf_config):
        return _scored(model.heads["masked_language_model"].scores(states), inputs)

    def example_labels(self, rng, inputs, hf_config):
        return {"labels": _token_labels(rng, inputs, hf_config.values["vocab_size"])}


@dataclass(frozen=True)
class PreTrainingTask(Task):
    """The original tokens, and how two sentences belong together."""

    label: Literal["next_sentence", "sentence_order"]
    """What is asked of the pair."""
    scores_name: str
    """What the scores of the pair are called: "seq_relationship_logits"."""

    def heads(self, hf_config):
        return (MaskedLanguageModel(), Classification(label=self.label))

    def outputs(self, model, states, inputs, hf_config):
        tokens = model.heads["masked_language_model"].scores(states)
        pair = model.heads[self.label].scores(states)
        outputs = {"prediction_logits": tokens, self.scores_name: pair}
        pair_labels = f"{self.label}_label"
        if "labels" in inputs and pair_labels in inputs:
            pair_loss = token_loss(pair, inputs[pair_labels])
            outputs["loss"] = token_loss(tokens, inputs["labels"]) + pair_loss
        return outputs

    def example_labels(self, rng, inputs, hf_config):
        labels = _token_labels(rng, inputs, hf_config.values["vocab_size"])
        return {"labels": labels, f"{self.label}_label": rng.integers(2, size=len(labels))}


@dataclass(frozen=True)
class NextSentenceTask(Task):
    """Whether a sentence follows another."""

    def heads(self, hf_config):
        return (Classification(label="next_sentence"),)

    def outputs(self, model, states, inputs, hf_config):
        return _scored(model.heads["next_sentence"].scores(states), inputs)

    def example_labels(self, rng, inputs, hf_config):
        return {"labels": rng.integers(2, size=len(inputs["input_ids"]))}


@dataclass(frozen=True)
class SequenceClassificationTask(Task):
    """One of a few labels, several, or numbers for the whole sequence or image."""

    pooling: Pooling = "first"
    """The state that is read."""
    bias: bool = True
    """Whether the output layer has a bias."""
    dense: Dense | None = None
    """A layer before it."""

    def heads(self, hf_config):
        options = {"pooling": self.pooling, "bias": self.bias, "dense": self.dense}
        return (Classification(num_labels=num_labels(hf_config), **options),)

    def outputs(self, model, states, inputs, hf_config):
        loss = partial(_sequence_loss, hf_config=hf_config)
        return _scored(model.heads["label"].scores(states), inputs, loss)

    def example_labels(self, rng, inputs, hf_config):
        rows = len(next(iter(inputs.values())))
        return {"labels": rng.integers(num_labels(hf_config), size=rows)}


@dataclass(frozen=True)
class EndTokenClassificationTask(SequenceClassificationTask):
    """Sequence classification by the decoder's state at the last end token of the inputs (BART)."""

    pooling: Pooling = "last"
    dense: Dense | None = Dense("tanh")
    repeats_inputs: bool = field(default=True, kw_only=True)

    def outputs(self, model, states, inputs, hf_config):
        ends = inputs["input_ids"] == hf_config.take("eos_token_id")
        return super().outputs(model, states._replace(valid=ends), inputs, hf_config)

    def example_labels(self, rng, inputs, hf_config):
        ids = with_ends(inputs, hf_config.values["eos_token_id"])
        return super().example_labels(rng, inputs, hf_config) | {"input_ids": ids}


@dataclass(frozen=True)
class DistilledClassificationTask(Task):
    """A label by the class token and one by the distillation token, which are averaged (DeiT)."""

    def heads(self, hf_config):
        labels = num_labels(hf_config)
        return (
            Classification(num_labels=labels),
            Classification(num_labels=labels, label="distillation", pooling="second"),
        )

    def outputs(self, model, states, inputs, hf_config):
        own = model.heads["label"].scores(states)
        taught = model.heads["distillation"].scores(states)
        return {"logits": (own + taught) / 2, "cls_logits": own, "distillation_logits": taught}


@dataclass(frozen=True)
class TokenClassificationTask(Task):
    """One of a few labels for each token."""

    def heads(self, hf_config):
        return (TokenClassification(num_labels=num_labels(hf_config)),)

    def outputs(self, model, states, inputs, hf_config):
        return _scored(model.heads["tags"].scores(states), inputs)

    def example_labels(self, rng, inputs, hf_config):
        return {"labels": _token_labels(rng, inputs, num_labels(hf_config))}


@dataclass(frozen=True)
class QuestionAnsweringTask(Task):
    """The first and the last token of an answer."""

    def heads(self, hf_config):
        return (Span(),)

    def outputs(self, model, states, inputs, hf_config):
        # Padding is not hidden from these scores there.
        scores = model.heads["span"].scores(states._replace(valid=None))
        outputs = {"start_logits": scores[:, 0], "end_logits": scores[:, 1]}
        if "start_positions" in inputs and "end_positions" in inputs:
            length = scores.shape[-1]
            losses = [
                _answer_loss(outputs[f"{end}_logits"], inputs[f"{end}_positions"], length)
                for end in ("start", "end")
            ]
            outputs["loss"] = sum(losses) / 2
        return outputs

    def example_labels(self, rng, inputs, hf_config):
        rows, length = inputs["input_ids"].shape
        mask = inputs.get("attention_mask", np.ones((rows, length)))
        if not mask[:, 0].all():
            # A decoder's padding on the left has scores that mean nothing, yet the loss has them.
            return {}
        places = rng.integers(length + 3, size=(2, rows))  # some beyond the end
        return {"start_positions": places[0], "end_positions": places[1]}


def num_labels(hf_config: HFConfig) -> int:
    """How many labels a config.json gives names to; two where it does not say."""
    names = hf_config.take("id2label", None)
    return len(names) if names else hf_config.take("num_labels", 2)


def token_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross-entropy where the label is not -100.

    Args:
        logits: `[..., V]`.
        labels: int `[...]`.
    """
    # Where the vocabulary is cut, no device could look up a label alone.
    logits, counted = on_rows(logits), labels != IGNORED
    picked = jnp.take_along_axis(logits, jnp.where(counted, labels, 0)[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - picked
    return jnp.sum(jnp.where(counted, losses, 0.0)) / jnp.sum(counted)


def with_ends(inputs: Mapping[str, np.ndarray], end: int, *, twice: bool = False) -> np.ndarray:
    """Made-up ids `[B, T]` whose last real token is the end token, and no other.

    Args:
        inputs: With the ids and, where there is padding, the mask.
        end: The end token.
        twice: Whether another one comes before, a third of the tokens earlier.
    """
    ids, real = inputs["input_ids"], _real(inputs)
    places = np.arange(ids.shape[1])
    last = np.max(np.where(real, places, 0), axis=1, keepdims=True)
    first = last - np.sum(real, axis=1, keepdims=True) // 3 if twice else last
    other = np.where(ids == end, end + 1, ids)
    return np.where((places == first) | (places == last), end, other)


def _scored(
    logits: jax.Array, inputs: Arrays, loss: Callable[..., jax.Array] = token_loss
) -> dict[str, jax.Array]:
    """Scores and, where there are labels, what `loss` makes of both."""
    outputs = {"logits": logits}
    if "labels" in inputs:
        outputs["loss"] = loss(logits, inputs["labels"])
    return outputs


def _token_labels(rng: np.random.Generator, inputs: Mapping, choices: int) -> np.ndarray:
    """A label for most of the real tokens."""
    shape = inputs["input_ids"].shape
    counted = _real(inputs) & (rng.random(shape) < 0.8)
    return np.where(counted, rng.integers(choices, size=shape), IGNORED)


def _real(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which of the made-up ids are no padding, bool `[B, T]`."""
    return inputs.get("attention_mask", np.ones_like(inputs["input_ids"])) > 0


def _answer_loss(logits: jax.Array, places: jax.Array, length: int) -> jax.Array:
    places = jnp.clip(places, 0, length)  # beyond the end: the answer does not count
    return token_loss(logits, jnp.where(places == length, IGNORED, places))


def _sequence_loss(logits: jax.Array, labels: jax.Array, hf_config: HFConfig) -> jax.Array:
    kind = hf_config.take("problem_type", None)
    if kind is None:
        whole = jnp.issubdtype(labels.dtype, jnp.integer)
        several = "single_label_classification" if whole else "multi_label_classification"
        kind = "regression" if logits.shape[-1] == 1 else several
    if kind == "regression":
        return jnp.mean(jnp.square(logits.reshape(-1) - labels.reshape(-1)))
    if kind == "single_label_classification":
        return token_loss(logits, labels.reshape(-1))
    if kind == "multi_label_classification":
        softplus = jnp.logaddexp(0.0, logits)
        return jnp.mean(softplus - logits * labels)
    raise DataError(
        f"{hf_config.path}: problem_type = {kind!r}: one of regression, "
        "single_label_classification, multi_label_classification"
    )
