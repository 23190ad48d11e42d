"""Classification and regression heads, for sequences or tokens."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_field
from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.dropout import dropout
from jaxformer.functional.losses.cross_entropy import LossSums, binary_cross_entropy
from jaxformer.models.heads import metrics
from jaxformer.models.heads.base import (
    Head,
    HeadModule,
    ModelOutput,
    PredictionOptions,
    Predictions,
    Unit,
    array,
    class_loss,
    number,
    pool,
)
from jaxformer.models.heads.dense import Dense, DenseLayer, ResidualMLP, ResidualMLPLayer
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, constant, normal, parameter

Pooling = Literal["first", "first_state", "last", "mean", "late", "first_and_mean", "second"]


def _label(values: np.ndarray, options: PredictionOptions) -> dict[str, Any]:
    """Returns the best label and its probability, or with `scores` those of all labels too."""
    best = int(np.argmax(values))
    row = {"label": options.labels[best], "score": number(values[best])}
    if options.scores:
        named = zip(options.labels, values, strict=True)
        row |= {f"score_{label}": number(value) for label, value in named}
    return row


def build_dense(
    key: jax.Array, dense: Dense | ResidualMLP | None, config: TransformerConfig, width: int
) -> DenseLayer | ResidualMLPLayer | None:
    """Builds the layer before the output of a head, if it has one."""
    return None if dense is None else dense.build(key, config, width)


@dataclass(frozen=True)
class Classification(Head):
    """Classification of a sequence or image into one of several labels.

    Reads the label's name, int `[B]`, and "<name>_weights", float `[B]`.
    """

    named_labels: ClassVar[bool] = True
    problem_type: ClassVar[str | None] = "single_label_classification"
    predicts: ClassVar[bool] = True
    num_labels: int = 2
    """Number of labels."""
    label: str = "label"
    """The label: "label", or "next_sentence", "sentence_order"."""
    pooling: Pooling = "first"
    """The input state: the first token (after the pooler), the first token without the pooler
    (BigBird), the last real token, the mean over real tokens, the mean of `dense` outputs ("late":
    EuroBERT), the first token and the mean concatenated (DINOv2), or the second token (DeiT's
    distillation token).
    """
    bias: bool = True
    """Whether the output layer has a bias."""
    dense: Dense | None = None
    """A layer before the output (BART), or None."""
    mixes_layers: bool = False
    """Whether the states are a learned average of those of all layers (SUPERB)."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels >= 1, "at least 1")

    @classmethod
    def for_model(cls, model, num_labels):
        """Returns a head with the pooling of such a model: the last token if it is causal."""
        classes = getattr(model, "class_token", True)
        pooling = "last" if model.causal else "first" if classes else "mean"
        labels = {} if num_labels is None or not cls.named_labels else {"num_labels": num_labels}
        return cls(**labels, pooling=pooling, bias=not model.causal)

    @classmethod
    def like(cls, head: "Classification") -> Self:
        """Returns a head of this class with another's fields, except for unsupported labels."""
        if type(head) is cls:
            return head
        shared = {field.name: getattr(head, field.name) for field in fields(head)}
        if not cls.named_labels:
            del shared["num_labels"]
        return cls(**shared)

    @property
    def name(self) -> str:
        return self.label

    def build(self, key, config):
        return ClassificationHead(key, config, self)

    def reads(self, rows, length):
        return {self.label: array(rows), f"{self.label}_weights": array(rows, dtype=jnp.float32)}

    def choices(self, config):
        return self.num_labels

    def metrics(self, result, data):
        return metrics.classification_scores(*result.predictions[:3], self.num_labels)

    def baseline(self, train, validation):
        return metrics.most_frequent(train, validation, self.label, f"{self.label}_weights")

    def probabilities(self, scores):
        # In transformers, a head with one output is a regression.
        return scores if self.num_labels == 1 else jax.nn.softmax(scores, axis=-1)

    def prediction(self, values, options):
        if self.num_labels == 1:
            return {"score": number(np.reshape(values, ()))}
        return _label(values, options)


@dataclass(frozen=True)
class Regression(Classification):
    """Regression of a number for the whole sequence (STS-B) with squared error.

    Reads the label's name and "<name>_weights", float `[B]`.
    """

    named_labels: ClassVar[bool] = False
    problem_type: ClassVar[str | None] = "regression"
    num_labels: int = 1
    """Number of outputs, which is 1."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels == 1, "1")

    def build(self, key, config):
        return RegressionHead(key, config, self)

    def reads(self, rows, length):
        return super().reads(rows, length) | {self.label: array(rows, dtype=jnp.float32)}

    def choices(self, config):
        """Returns None: the scores are not over classes."""

    def metrics(self, result, data):
        scores = metrics.regression_scores(*result.predictions[:3])
        return {"squared_error": result.loss, **scores}

    def baseline(self, train, validation):
        """Computes the squared error of predicting the mean."""
        names = self.label, f"{self.label}_weights"
        numbers, weights = metrics.flat(train, *names)
        mean = np.average(numbers, weights=weights)
        numbers, weights = metrics.flat(validation, *names)
        return {"squared_error": float(np.average((numbers - mean) ** 2, weights=weights))}


@dataclass(frozen=True)
class MultiLabel(Classification):
    r"""Multi-label classification of a sequence or image.

    .. math:: -\frac{1}{L} \sum_l y_l \log \sigma(s_l) + (1 - y_l) \log (1 - \sigma(s_l))

    Reads the label's name, float `[B, L]`, 1 for the labels of a row and 0 for the others, and
    "<name>_weights", float `[B]`.
    """

    problem_type: ClassVar[str | None] = "multi_label_classification"

    def build(self, key, config):
        return MultiLabelHead(key, config, self)

    def reads(self, rows, length):
        labels = array(rows, self.num_labels, dtype=jnp.float32)
        return super().reads(rows, length) | {self.label: labels}

    def choices(self, config):
        """Returns None: the scores are not over classes."""

    def metrics(self, result, data):
        labels = data.labels or tuple(map(str, range(self.num_labels)))
        return metrics.multi_label_scores(*result.predictions[:3], labels)

    def baseline(self, train, validation):
        """Computes the loss of predicting the label frequencies."""
        names = self.label, f"{self.label}_weights"
        labels, weights = metrics.rows_of(train, *names)
        # Additive smoothing, so that unseen values are not impossible.
        shares = (weights @ labels + 1.0) / (weights.sum() + 2.0)
        labels, weights = metrics.rows_of(validation, *names)
        losses = -(labels * np.log(shares) + (1 - labels) * np.log(1 - shares)).mean(axis=1)
        return {"loss": float(np.average(losses, weights=weights))}

    def probabilities(self, scores):
        return jax.nn.sigmoid(scores)

    def prediction(self, values, options):
        """Adds the labels with a probability above one half, and all probabilities."""
        chosen = [name for name, x in zip(options.labels, values, strict=True) if x > 0.5]
        row = _label(values, options._replace(scores=True))
        first = {name: row.pop(name) for name in ("label", "score")}
        return first | {"labels": chosen} | row


class ClassificationHead(HeadModule):
    """Pooling, dropout and a linear layer, optionally with a dense layer before it."""

    def __init__(self, key: jax.Array, config: TransformerConfig, head: Classification):
        """Declares the layers."""
        width = config.output_width * (2 if head.pooling == "first_and_mean" else 1)
        keys = jax.random.split(key)
        self.dense = build_dense(keys[1], head.dense, config, width)
        inputs = {"embed": width if head.dense is None else head.dense.output_width(width)}
        outputs = {"labels": head.num_labels}
        self.output = Linear(keys[0], inputs, outputs, normal(config.init_std), bias=head.bias)
        states = config.num_layers + 1
        self.layer_weights = (
            parameter(key, (states,), ("kinds",), constant(1 / states))
            if head.mixes_layers
            else None
        )
        self.pooling = head.pooling
        self.label = head.label
        self.dropout = config.dropout
        self.weights = f"{head.label}_weights"

    def scores(self, outputs, key=None):
        if self.layer_weights is not None:
            weights = jax.nn.softmax(self.layer_weights[...])
            mixed = jnp.einsum("lbtd,l->btd", outputs.layers.astype(jnp.float32), weights)
            outputs = outputs._replace(hidden=mixed.astype(outputs.hidden.dtype))
        dense = (lambda x: x) if self.dense is None else self.dense
        if self.pooling == "late":
            pooled = pool(dense(outputs.hidden), outputs.valid, "mean")
        else:
            pooled = dense(self._pooled(outputs))
        return self.output(dropout(pooled, self.dropout, key)).astype(jnp.float32)

    def loss(self, outputs, batch, options, key):
        weights = batch[self.weights]
        scores = self.scores(outputs, key)
        return class_loss(scores, batch[self.label], weights, options._replace(z_loss=0.0))

    def predictions(self, outputs, batch):
        """Returns the label with the highest score."""
        return self._predictions(jnp.argmax(self.scores(outputs), axis=-1), batch)

    def _predictions(self, predicted, batch) -> Predictions:
        return Predictions(predicted, batch[self.label], batch[self.weights])

    def _pooled(self, outputs: ModelOutput) -> jax.Array:
        if self.pooling == "first":
            return outputs.pooled
        if self.pooling == "second":
            return outputs.hidden[:, 1]
        if self.pooling == "first_and_mean":
            mean = pool(outputs.hidden, outputs.valid, "mean")
            return jnp.concatenate([outputs.pooled, mean], axis=-1)
        pooling = "first" if self.pooling == "first_state" else self.pooling
        return pool(outputs.hidden, outputs.valid, pooling)


class RegressionHead(ClassificationHead):
    """The layers of `ClassificationHead` with a single output, the number."""

    def scores(self, outputs, key=None):
        return super().scores(outputs, key)[:, 0]

    def loss(self, outputs, batch, options, key):
        weights = batch[self.weights]
        scores = self.scores(outputs, key)
        numbers = batch[self.label]
        arrays = {self.label: (numbers, "B"), self.weights: (weights, "B")}
        assert_axes({"B": scores.shape[0]}, **arrays)
        errors = jnp.square(scores - numbers)
        zero = jnp.zeros((), jnp.float32)
        return LossSums(jnp.sum(errors * weights), jnp.sum(weights), zero, zero)

    def predictions(self, outputs, batch):
        """Returns the number."""
        return self._predictions(self.scores(outputs), batch)


class MultiLabelHead(ClassificationHead):
    """The layers of `ClassificationHead`; each output is the log-odds of its label."""

    def loss(self, outputs, batch, options, key):
        weights = batch[self.weights]
        scores = self.scores(outputs, key)
        labels = batch[self.label]
        sizes = dict(zip("BL", scores.shape, strict=True))
        arrays = {self.label: (labels, "B L"), self.weights: (weights, "B")}
        assert_axes(sizes, **arrays)
        losses = jnp.mean(binary_cross_entropy(scores, labels), axis=-1)
        right = jnp.all((scores > 0) == (labels > 0.5), axis=-1)
        zero = jnp.zeros((), jnp.float32)
        return LossSums(jnp.sum(losses * weights), jnp.sum(weights), jnp.sum(right * weights), zero)

    def predictions(self, outputs, batch):
        """Returns the labels with a probability above one half, int `[B, L]`."""
        return self._predictions((self.scores(outputs) > 0).astype(jnp.int32), batch)


@dataclass(frozen=True)
class TokenClassification(Head):
    """Classification of each token (named entities, parts of speech).

    Reads "targets" and "weights" `[B, T]`; the weight is 0 except for the first piece of each word.
    """

    name: ClassVar[str] = "tags"
    named_labels: ClassVar[bool] = True
    problem_type: ClassVar[str | None] = "single_label_classification"
    unit: ClassVar[Unit] = "token"
    predicts: ClassVar[bool] = True

    num_labels: int = 2
    """Number of labels."""
    dense: Dense | None = None
    """A layer before the output (ModernBERT), or None."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels >= 1, "at least 1")

    @classmethod
    def for_model(cls, model, num_labels):
        return cls() if num_labels is None else cls(num_labels)

    def build(self, key, config):
        return TokenClassificationHead(key, config, self)

    def choices(self, config):
        return self.num_labels

    def metrics(self, result, data):
        tags = data.labels or tuple(map(str, range(self.num_labels)))
        return metrics.tag_scores(*result.predictions[:3], tags)

    def baseline(self, train, validation):
        return metrics.most_frequent(train, validation, "targets", "weights")

    def probabilities(self, scores):
        return jax.nn.softmax(scores, axis=-1)


class TokenClassificationHead(HeadModule):
    """Dropout and a linear layer on every token's state, optionally after a dense layer."""

    def __init__(self, key: jax.Array, config: TransformerConfig, head: TokenClassification):
        """Declares the layers."""
        keys = jax.random.split(key)
        inputs = {"embed": config.output_width}
        outputs = {"labels": head.num_labels}
        self.output = Linear(keys[0], inputs, outputs, normal(config.init_std), bias=True)
        self.dense = build_dense(keys[1], head.dense, config, config.output_width)
        self.dropout = config.dropout

    def scores(self, outputs, key=None):
        hidden = outputs.hidden if self.dense is None else self.dense(outputs.hidden)
        return self.output(dropout(hidden, self.dropout, key)).astype(jnp.float32)

    def loss(self, outputs, batch, options, key):
        scores = self.scores(outputs, key)
        targets, weights = batch["targets"], batch["weights"]
        return class_loss(scores, targets, weights, options._replace(z_loss=0.0))

    def predictions(self, outputs, batch):
        """Returns the label with the highest score for each token."""
        predicted = jnp.argmax(self.scores(outputs), axis=-1)
        return Predictions(predicted, batch["targets"], batch["weights"])
