"""The heads, outputs and losses of the model classes in transformers."""

# long: one table of transformers' classes, with a few lines for each

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxformer.errors import DataError
from jaxformer.functional.arrays import whole_rows
from jaxformer.functional.losses.cross_entropy import binary_cross_entropy, cross_entropy
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks.label_names import ONE_LABEL, SEVERAL_LABELS
from jaxformer.io.components import imported_types
from jaxformer.models import (
    Classification,
    Dense,
    Head,
    LanguageModel,
    MaskedLanguageModel,
    ModelOutput,
    MultiLabel,
    Projection,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.base import head_class, pool
from jaxformer.models.heads.labels import Pooling
from jaxformer.models.model import Model

IGNORED = -100
"""The label of tokens that the loss ignores."""
Arrays = Mapping[str, jax.Array]
_OLD_END = 2
_PENALTY = 1e6


@dataclass(frozen=True)
class Task:
    """The task of a class without a head; subclasses have heads."""

    repeats_inputs: bool = field(default=False, kw_only=True)
    """Whether a decoder without inputs uses those of the encoder."""
    reads_padding: ClassVar[bool] = False
    """Whether padding counts as text, which requires padding to a fixed length (SigLIP)."""
    pre_trains: ClassVar[bool] = False
    """Whether the heads are pre-training heads, which files of a bare model often lack."""
    labels_are_decoder_targets: ClassVar[bool] = False
    """Whether a decoder without inputs reads the shifted labels."""
    logits_of: ClassVar[str | None] = None
    """The name of the head whose scores are the logits, if any."""
    head_types: ClassVar[tuple[type[Head], ...]] = ()
    """The heads of this class that data may require; see `Data.head`."""
    FIELDS: ClassVar[Mapping[str, str]] = {}
    """Field of the head -> field of config.json."""

    def teaches(self, kind: str) -> bool:
        """Whether data that require a kind of head, see `Head.kind`, can train this class."""
        return kind in [head.kind() for head in self.head_types]

    def heads_for(self, kind: str, hf_config: HFConfig) -> tuple[Head, ...]:
        """Returns the heads of the class for data that require a kind of head."""
        return self.heads(hf_config)

    def heads(self, hf_config: HFConfig) -> tuple[Head, ...]:
        """Returns the heads of the class, by default those of `head_types` with their `FIELDS`."""
        heads = []
        for usual in (head() for head in self.head_types):
            values = {}
            for ours, theirs in self.FIELDS.items():
                default = getattr(usual, ours)
                read = hf_config.take if isinstance(default, bool) else hf_config.number
                values[ours] = read(theirs, default)
            heads.append(replace(usual, **values))
        return tuple(heads)

    def rows(self, inputs: Arrays, hf_config: HFConfig) -> Arrays:
        """Returns the inputs of the body, with one text per row."""
        return inputs

    def decoder_mask(
        self, targets: jax.Array, inputs: Arrays, hf_config: HFConfig
    ) -> jax.Array | None:
        """Returns the default mask `[B, T]` of the decoder's inputs `targets`.

        None means that all are real.
        """
        return None

    def outputs(
        self, model: Model, states: ModelOutput, inputs: Arrays, hf_config: HFConfig
    ) -> dict[str, jax.Array]:
        """Returns the scores and, if `inputs` has labels, the loss."""
        if self.logits_of is None:
            return {}
        return scored(model.heads[self.logits_of].scores(states, states.key), inputs)


@dataclass(frozen=True)
class CausalLMTask(Task):
    """Next-token prediction."""

    logits_of = "language_model"
    head_types = (LanguageModel,)
    pre_trains = True

    def outputs(self, model, states, inputs, hf_config):
        def loss(logits, labels):
            return token_loss(logits[:, :-1], labels[:, 1:])

        return scored(model.heads["language_model"].scores(states), inputs, loss)


@dataclass(frozen=True)
class UnshiftedCausalLMTask(CausalLMTask):
    """Next-token prediction with already shifted labels (BART)."""

    outputs = Task.outputs


@dataclass(frozen=True)
class Seq2SeqLMTask(Task):
    """Prediction of a decoder's target tokens."""

    logits_of = "language_model"
    head_types = (LanguageModel,)
    labels_are_decoder_targets = True
    pre_trains = True


@dataclass(frozen=True)
class MaskedLMTask(Task):
    """Prediction of the original tokens."""

    logits_of = "masked_language_model"
    head_types = (MaskedLanguageModel,)
    pre_trains = True

    activation: str | None = None
    """The head's activation; None uses the model's "hidden_act"."""

    def heads(self, hf_config):
        same = self.activation == hf_config.take("hidden_act", self.activation)
        return (MaskedLanguageModel(activation=None if same else self.activation),)


@dataclass(frozen=True)
class PreTrainingTask(Task):
    """Prediction of the original tokens and of the relation of two sentences."""

    pre_trains = True

    label: Literal["next_sentence", "sentence_order"]
    """The label of the pair."""
    scores_name: str
    """The name of the pair's scores: "seq_relationship_logits"."""

    def teaches(self, kind):
        return kind == self.label

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


@dataclass(frozen=True)
class NextSentenceTask(Task):
    """Prediction of whether one sentence follows another."""

    logits_of = "next_sentence"
    pre_trains = True

    def heads(self, hf_config):
        return (Classification(label="next_sentence"),)


@dataclass(frozen=True)
class SequenceClassificationTask(Task):
    """Prediction of a label, several labels or numbers for a sequence or image."""

    head_types = (Classification, MultiLabel, Regression)
    pooling: Pooling = "first"
    """The pooling of the states."""
    bias: bool = True
    """Whether the output layer has a bias."""
    dense: Dense | None = None
    """A layer before the output layer."""

    def heads_for(self, kind, hf_config):
        head = head_class(kind)
        return tuple(head.like(each) for each in self.heads(hf_config))

    def heads(self, hf_config):
        options = {"pooling": self.pooling, "bias": self.bias, "dense": self.dense}
        several = hf_config.take("problem_type", None) == SEVERAL_LABELS
        kind = MultiLabel if several else Classification
        return (kind(num_labels=num_labels(hf_config), **options),)

    def outputs(self, model, states, inputs, hf_config):
        loss = partial(_sequence_loss, hf_config=hf_config)
        scores = model.heads["label"].scores(states, states.key)
        # A head for numbers has one score for each row, [B].
        return scored(scores.reshape(scores.shape[0], -1), inputs, loss)


@dataclass(frozen=True)
class EndTokenClassificationTask(SequenceClassificationTask):
    """Sequence classification by the decoder's state at the last end token of the inputs (BART)."""

    pooling: Pooling = "last"
    dense: Dense | None = Dense("tanh")
    repeats_inputs: bool = field(default=True, kw_only=True)

    def outputs(self, model, states, inputs, hf_config):
        ends = inputs["input_ids"] == hf_config.take("eos_token_id")
        return super().outputs(model, states._replace(valid=ends), inputs, hf_config)


@dataclass(frozen=True)
class TokenClassificationTask(Task):
    """Prediction of a label for each token."""

    logits_of = "tags"
    head_types = (TokenClassification,)

    def heads(self, hf_config):
        return (TokenClassification(num_labels=num_labels(hf_config)),)


@dataclass(frozen=True)
class QuestionAnsweringTask(Task):
    """Prediction of the first and last token of an answer."""

    head_types = (Span,)

    def excluded(self, inputs: Arrays, hf_config: HFConfig) -> jax.Array | None:
        """Returns the tokens that cannot begin or end an answer, bool `[B, T]`, or None."""

    def outputs(self, model, states, inputs, hf_config):
        # Transformers does not mask padding in these scores.
        scores = model.heads["span"].scores(states._replace(valid=None))
        excluded = self.excluded(inputs, hf_config)
        if excluded is not None:
            scores -= _PENALTY * excluded[:, None, :]
        outputs = {"start_logits": scores[:, 0], "end_logits": scores[:, 1]}
        if "start_positions" in inputs and "end_positions" in inputs:
            length = scores.shape[-1]
            losses = [
                _answer_loss(outputs[f"{end}_logits"], inputs[f"{end}_positions"], length)
                for end in ("start", "end")
            ]
            outputs["loss"] = sum(losses) / 2
        return outputs


@dataclass(frozen=True)
class ImageEmbeddingTask(Task):
    """A projection of the pooled state of an image (CLIP)."""

    def heads(self, hf_config):
        return (Projection(hf_config.number("projection_dim")),)

    def outputs(self, model, states, inputs, hf_config):
        return {"image_embeds": model.heads["projection"].scores(states)}


@dataclass(frozen=True)
class EndTokenTask(Task):
    """The state at the end token of a text, without a projection (CLIP)."""

    def heads(self, hf_config):
        hf_config.number("eos_token_id")  # Refuses a list before any weight is read.
        return ()

    def outputs(self, model, states, inputs, hf_config):
        valid = end_positions(inputs["input_ids"], hf_config)
        return {"pooler_output": pool(states.hidden, valid, "last")}


@dataclass(frozen=True)
class TextEmbeddingTask(EndTokenTask):
    """A projection of the state at the end token of a text (CLIP)."""

    def heads(self, hf_config):
        width = hf_config.number("projection_dim")
        return (*super().heads(hf_config), Projection(width, pooling="last"))

    def outputs(self, model, states, inputs, hf_config):
        valid = end_positions(inputs["input_ids"], hf_config)
        return {"text_embeds": model.heads["projection"].scores(states._replace(valid=valid))}


@dataclass(frozen=True)
class LastTokenTask(Task):
    """A projection of the state at the last position of a row, possibly padding (SigLIP)."""

    reads_padding = True

    def heads(self, hf_config):
        width = hf_config.number("projection_size", None) or hf_config.number("hidden_size")
        return (Projection(width, pooling="last", bias=True),)

    def outputs(self, model, states, inputs, hf_config):
        return {"pooler_output": model.heads["projection"].scores(states._replace(valid=None))}


@dataclass(frozen=True)
class CustomHeadsTask(Task):
    """Heads without a class in transformers: "logits", or "<head>_logits" for several heads."""

    def outputs(self, model, states, inputs, hf_config):
        found = {name: head.scores(states) for name, head in model.heads.items()}
        return {
            "logits" if len(found) == 1 else f"{name}_logits": scores
            for name, scores in found.items()
            if scores is not None  # for example, a model of images
        }


def task_of(heads: Sequence[Head], language_model_task: type[Task]) -> Task:
    """Returns the task of a model whose heads have no class in transformers."""
    if not heads:
        return Task()
    types = [type(head) for head in heads]
    head = next((each for each in heads if not each.over_vocabulary), heads[0])
    if MaskedLanguageModel in types and type(head) is Classification:
        return PreTrainingTask(head.label, f"{head.label}_logits")
    if head == Classification(label="next_sentence"):
        return NextSentenceTask()
    if type(head) is LanguageModel:
        return language_model_task()
    for task in imported_types(Task):
        if type(head) not in vars(task).get("head_types", ()):
            continue
        if head.name == type(head)().name:  # the task looks it up by this name
            shared = {field.name for field in fields(task)} & {field.name for field in fields(head)}
            return task(**{name: getattr(head, name) for name in shared})
    return CustomHeadsTask()


def num_labels(hf_config: HFConfig) -> int:
    """Returns the number of labels, by default 2."""
    names = hf_config.take("id2label", None)
    return len(names) if names else hf_config.take("num_labels", 2)


def token_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of logits `[..., V]` where the label `[...]` is not -100."""
    counted = (labels != IGNORED).astype(jnp.float32)
    sums = cross_entropy(logits, labels, counted)
    return sums.loss / sums.weight


def end_positions(ids: jax.Array, hf_config: HFConfig) -> jax.Array:
    """Returns the end position of each text in a row of `ids`, bool `[B, T]`.

    This is the first end token or, in old files with a wrong end token (2), the largest id.
    """
    end = hf_config.number("eos_token_id")
    found = ids if end == _OLD_END else (ids == end).astype(jnp.int32)
    return jnp.arange(ids.shape[1])[None, :] == jnp.argmax(found, axis=1, keepdims=True)


def scored(
    logits: jax.Array, inputs: Arrays, loss: Callable[..., jax.Array] = token_loss
) -> dict[str, jax.Array]:
    """Returns the scores and, if there are labels, their loss."""
    logits = whole_rows(logits)
    outputs = {"logits": logits}
    if "labels" in inputs:
        outputs["loss"] = loss(logits, inputs["labels"])
    return outputs


def _answer_loss(logits: jax.Array, positions: jax.Array, length: int) -> jax.Array:
    positions = jnp.clip(positions, 0, length)  # beyond the end: the answer is ignored
    return token_loss(logits, jnp.where(positions == length, IGNORED, positions))


def _sequence_loss(logits: jax.Array, labels: jax.Array, hf_config: HFConfig) -> jax.Array:
    kind = hf_config.take("problem_type", None)
    if kind is None:
        whole = jnp.issubdtype(labels.dtype, jnp.integer)
        several = ONE_LABEL if whole else SEVERAL_LABELS
        kind = "regression" if logits.shape[-1] == 1 else several
    if kind == "regression":
        return jnp.mean(jnp.square(logits.reshape(-1) - labels.reshape(-1)))
    if kind == ONE_LABEL:
        return token_loss(logits, labels.reshape(-1))
    if kind == SEVERAL_LABELS:
        return jnp.mean(binary_cross_entropy(logits, labels))
    raise DataError(
        f"{hf_config.path}: problem_type = {kind!r}: must be one of regression, {ONE_LABEL}, "
        f"{SEVERAL_LABELS}"
    )
