"""Heads over labels: of a sequence, of its tokens, or of the span of an answer."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from jaxformer.checks import at_least
from jaxformer.errors import check_field
from jaxformer.functional.assertions import assert_axes, static
from jaxformer.functional.dropout import dropout
from jaxformer.functional.losses.cross_entropy import LossSums, binary_cross_entropy
from jaxformer.models.heads.base import (
    Head,
    HeadModule,
    ModelOutput,
    Predictions,
    array,
    class_loss,
    pool,
)
from jaxformer.models.heads.dense import Dense, DenseLayer, ResidualMLP, ResidualMLPLayer
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, normal

Pooling = Literal["first", "first_state", "last", "mean", "late", "first_and_mean", "second"]


def _dense(
    key: jax.Array, dense: Dense | ResidualMLP | None, config: TransformerConfig, width: int
) -> DenseLayer | ResidualMLPLayer | None:
    return None if dense is None else dense.build(key, config, width)


@dataclass(frozen=True)
class Classification(Head):
    """One of a few labels for the whole sequence or image.

    Reads the label's name, int `[B]`, and "<name>_weights", float `[B]`.
    """

    num_labels: int = 2
    """Number of labels."""
    label: str = "label"
    """What is predicted: "label", or "next_sentence", "sentence_order"."""
    pooling: Pooling = "first"
    """The state that is read: the first token's (and the pooler's), the first's whether or not
    there is a pooler (BigBird), the last real token's, the mean over the real tokens, the mean of
    what `dense` makes of each of them ("late": EuroBERT), the first's and the mean side by side
    (DINOv2), or that of the second place (DeiT's distillation token)."""
    bias: bool = True
    """Whether the output layer has a bias."""
    dense: Dense | None = None
    """A layer before the output (BART); None: there is none."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels >= 1, "at least 1")

    @property
    def name(self) -> str:
        return self.label

    def build(self, key, config):
        return ClassificationHead(key, config, self)

    def reads(self, rows, length):
        del length
        return {self.label: array(rows), f"{self.label}_weights": array(rows, dtype=jnp.float32)}

    def choices(self, config):
        del config
        return self.num_labels


@dataclass(frozen=True)
class Regression(Classification):
    """A number for the whole sequence (STS-B); the loss is the squared error.

    Reads the label's name and "<name>_weights", float `[B]`.
    """

    num_labels: int = 1
    """Numbers that are predicted; one."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels == 1, "1")

    def build(self, key, config):
        return RegressionHead(key, config, self)

    def reads(self, rows, length):
        return super().reads(rows, length) | {self.label: array(rows, dtype=jnp.float32)}

    def choices(self, config):
        del config


@dataclass(frozen=True)
class MultiLabel(Classification):
    r"""Any of a few labels, none or several at once, for the whole sequence or image.

    .. math:: -\frac{1}{L} \sum_l y_l \log \sigma(s_l) + (1 - y_l) \log (1 - \sigma(s_l))

    Reads the label's name, float `[B, L]`, 1 for the labels of a row and 0 for the others, and
    "<name>_weights", float `[B]`.
    """

    def build(self, key, config):
        return MultiLabelHead(key, config, self)

    def reads(self, rows, length):
        labels = array(rows, self.num_labels, dtype=jnp.float32)
        return super().reads(rows, length) | {self.label: labels}

    def choices(self, config):
        del config


class ClassificationHead(HeadModule):
    """Pooling, dropout and a linear layer, perhaps a dense one before it."""

    def __init__(self, key: jax.Array, config: TransformerConfig, head: Classification):
        """Declares the layers."""
        width = config.output_width * (2 if head.pooling == "first_and_mean" else 1)
        keys = jax.random.split(key)
        inputs, outputs = {"embed": width}, {"labels": head.num_labels}
        self.output = Linear(keys[0], inputs, outputs, normal(config.init_std), bias=head.bias)
        self.dense = _dense(keys[1], head.dense, config, width)
        self.pooling, self.label, self.dropout = head.pooling, head.label, config.dropout

    def scores(self, outputs, key=None):
        dense = (lambda x: x) if self.dense is None else self.dense
        if self.pooling == "late":
            pooled = pool(dense(outputs.hidden), outputs.valid, "mean")
        else:
            pooled = dense(self._pooled(outputs))
        return self.output(dropout(pooled, self.dropout, key)).astype(jnp.float32)

    def loss_weight(self, batch):
        return jnp.sum(batch[f"{self.label}_weights"])

    def soft_weights(self, batch, valid):
        """The weights of the true labels."""
        del valid
        return batch[f"{self.label}_weights"]

    def loss(self, outputs, batch, options, key):
        weights = batch[f"{self.label}_weights"]
        scores = self.scores(outputs, key)
        return class_loss(scores, batch[self.label], weights, options._replace(z_loss=0.0))

    def predictions(self, outputs, batch):
        """The label that scores highest."""
        return self._predictions(jnp.argmax(self.scores(outputs), axis=-1), batch)

    def _predictions(self, predicted, batch) -> Predictions:
        return Predictions(predicted, batch[self.label], batch[f"{self.label}_weights"])

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
    """The same layers; their one output is the number."""

    def scores(self, outputs, key=None):
        return super().scores(outputs, key)[:, 0]

    def loss(self, outputs, batch, options, key):
        del options
        weights = batch[f"{self.label}_weights"]
        scores, numbers = self.scores(outputs, key), batch[self.label]
        arrays = {self.label: (numbers, "B"), f"{self.label}_weights": (weights, "B")}
        assert_axes({"B": scores.shape[0]}, **arrays)
        errors = jnp.square(scores - numbers)
        zero = jnp.zeros((), jnp.float32)
        return LossSums(jnp.sum(errors * weights), jnp.sum(weights), zero, zero)

    def predictions(self, outputs, batch):
        """The number."""
        return self._predictions(self.scores(outputs), batch)


class MultiLabelHead(ClassificationHead):
    """The same layers; each output is the log-odds of its label."""

    def loss(self, outputs, batch, options, key):
        del options
        weights = batch[f"{self.label}_weights"]
        scores, labels = self.scores(outputs, key), batch[self.label]
        sizes = dict(zip("BL", scores.shape, strict=True))
        arrays = {self.label: (labels, "B L"), f"{self.label}_weights": (weights, "B")}
        assert_axes(sizes, **arrays)
        losses = jnp.mean(binary_cross_entropy(scores, labels), axis=-1)
        right = jnp.all((scores > 0) == (labels > 0.5), axis=-1)
        zero = jnp.zeros((), jnp.float32)
        return LossSums(jnp.sum(losses * weights), jnp.sum(weights), jnp.sum(right * weights), zero)

    def predictions(self, outputs, batch):
        """The labels that are more probable than not, int `[B, L]`."""
        return self._predictions((self.scores(outputs) > 0).astype(jnp.int32), batch)


@dataclass(frozen=True)
class TokenClassification(Head):
    """One of a few labels for each token (named entities, parts of speech).

    Reads "targets" and "weights" `[B, T]`; the weight is 0 beyond the first piece of each word.
    """

    num_labels: int = 2
    """Number of labels."""
    dense: Dense | None = None
    """A layer before the output (ModernBERT); None: there is none."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels >= 1, "at least 1")

    @property
    def name(self) -> str:
        return "tags"

    def build(self, key, config):
        return TokenClassificationHead(key, config, self)

    def choices(self, config):
        del config
        return self.num_labels


class TokenClassificationHead(HeadModule):
    """Dropout and a linear layer on every token's state, perhaps a dense one before it."""

    def __init__(self, key: jax.Array, config: TransformerConfig, head: TokenClassification):
        """Declares the layers."""
        keys = jax.random.split(key)
        inputs, outputs = {"embed": config.output_width}, {"labels": head.num_labels}
        self.output = Linear(keys[0], inputs, outputs, normal(config.init_std), bias=True)
        self.dense = _dense(keys[1], head.dense, config, config.output_width)
        self.dropout = config.dropout

    def scores(self, outputs, key=None):
        hidden = outputs.hidden if self.dense is None else self.dense(outputs.hidden)
        return self.output(dropout(hidden, self.dropout, key)).astype(jnp.float32)

    def loss_weight(self, batch):
        return jnp.sum(batch["weights"])

    def soft_weights(self, batch, valid):
        """The weights of the true labels: one place per word."""
        del valid
        return batch["weights"]

    def loss(self, outputs, batch, options, key):
        scores = self.scores(outputs, key)
        targets, weights = batch["targets"], batch["weights"]
        return class_loss(scores, targets, weights, options._replace(z_loss=0.0))

    def predictions(self, outputs, batch):
        """The label that scores highest for each token."""
        predicted = jnp.argmax(self.scores(outputs), axis=-1)
        return Predictions(predicted, batch["targets"], batch["weights"])


@dataclass(frozen=True)
class Span(Head):
    """The first and last token of an answer within the sequence (SQuAD).

    Reads "span" int `[B, 2]` and "span_weights" `[B]`; the loss is the mean of the two ends'. The
    span of the first token alone stands for no answer. Predicted spans lie where "span_places",
    bool `[B, T]`, is true; anywhere but in padding without it.

    References:
        Devlin et al., BERT (https://arxiv.org/abs/1810.04805), sections 4.2 and 4.3.
    """

    longest: int = 30
    """The most tokens of a predicted span."""
    dense: Dense | ResidualMLP | None = None
    """A layer before the output (ModernBERT, BigBird); None: there is none."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "longest", self.longest >= 1, "at least 1")

    @property
    def name(self) -> str:
        return "span"

    def build(self, key, config):
        return SpanHead(key, config, self)

    def reads(self, rows, length):
        del length
        return {"span": array(rows, 2), "span_weights": array(rows, dtype=jnp.float32)}


class SpanHead(HeadModule):
    """A linear layer that scores every token as the first and as the last."""

    def __init__(self, key: jax.Array, config: TransformerConfig, head: Span):
        """Declares the layers."""
        keys = jax.random.split(key)
        inputs, outputs = {"embed": config.output_width}, {"labels": 2}
        self.output = Linear(keys[0], inputs, outputs, normal(config.init_std), bias=True)
        self.dense = _dense(keys[1], head.dense, config, config.output_width)
        self.longest = head.longest

    def scores(self, outputs, key=None):
        """`[B, 2, T]`; minus a large number at padding."""
        del key
        hidden = outputs.hidden if self.dense is None else self.dense(outputs.hidden)
        logits_B2T = jnp.swapaxes(self.output(hidden).astype(jnp.float32), 1, 2)
        if outputs.valid is None:
            return logits_B2T
        return jnp.where(outputs.valid[:, None, :], logits_B2T, -1e9)

    def loss_weight(self, batch):
        return jnp.sum(batch["span_weights"])

    def loss(self, outputs, batch, options, key):
        scores, weights = self.scores(outputs, key), batch["span_weights"]
        rows = {"B": scores.shape[0]}
        assert_axes(rows, span=(batch["span"], "B 2"), span_weights=(weights, "B"))
        halves = jnp.broadcast_to(weights[:, None] / 2, batch["span"].shape)
        return class_loss(scores, batch["span"], halves, options._replace(z_loss=0.0))

    def predictions(self, outputs, batch):
        """The best span; its score and that of no answer, `[B, 2]`, which windows compete with."""
        scores = self.scores(outputs)
        nothing = scores[:, 0, 0] + scores[:, 1, 0]
        if "span_places" in batch:
            scores = jnp.where(batch["span_places"][:, None, :], scores, -1e9)
        spans, best = best_spans(scores, self.longest)
        scores = jnp.stack([best, nothing], axis=1)
        return Predictions(spans, batch["span"], batch["span_weights"], scores)


def best_spans(scores: jax.Array, longest: int) -> tuple[jax.Array, jax.Array]:
    r"""The span with the largest sum of the scores of its ends.

    .. math:: \arg\max_{(i, j)} a_i + b_j, \quad 0 \le j - i < n

    Args:
        scores: `[B, 2, T]`: a, of each token as the first, and b, as the last.
        longest: N, the most tokens of a span.

    Returns:
        The first and the last token, int32 `[B, 2]`, the shorter span of equals; its sum, `[B]`.
    """
    assert_axes(scores=(scores, "B 2 T"))
    longest = static("longest", longest, at_least(1))
    size = scores.shape[2]
    firsts, lasts = scores[:, 0], scores[:, 1]
    lasts = jnp.pad(lasts, ((0, 0), (0, longest - 1)), constant_values=-jnp.inf)
    sums = [firsts + lasts[:, extra : extra + size] for extra in range(longest)]
    sums_BN = jnp.concatenate(sums, axis=1)
    extra, first = jnp.divmod(jnp.argmax(sums_BN, axis=1), size)
    return jnp.stack([first, first + extra], axis=1), jnp.max(sums_BN, axis=1)
