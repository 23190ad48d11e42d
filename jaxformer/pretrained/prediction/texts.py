"""Labels, numbers and embeddings of texts."""

import abc
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.models.heads.base import pool
from jaxformer.pretrained.prediction.batches import Batches
from jaxformer.pretrained.prediction.predictor import Predictor, Row, Subject, number

Pooling = Literal["mean", "first", "last"]


class TextPredictor(Predictor):
    """Predicts something for a text, or for a pair of texts."""

    def _rows(self, records):
        tokens = self.reader.encode(self._texts(records))
        return [self._row(found) for found, _ in self._tokens_run(self._compute, tokens)]

    @functools.cached_property
    def _compute(self) -> Batches:
        return self._batches(self._function)

    @abc.abstractmethod
    def _function(self, model, arrays) -> jax.Array:
        """What is computed for a batch."""

    @abc.abstractmethod
    def _row(self, found: np.ndarray) -> Row:
        """What is predicted, from what was computed for a row."""


class LabelPredictor(TextPredictor):
    """The label that scores highest, and its probability.

    Args:
        subject: The model.
        scores: Whether to add the probabilities of all labels.
        several: Whether each label has a probability of its own (multi-label classification): then
            all are added, and the list of the labels that are more probable than not.
    """

    def __init__(self, subject: Subject, scores: bool = False, several: bool = False):
        super().__init__(subject)
        self._several = several
        named = subject.labels if scores or several else ()
        self._names = tuple(f"score_{label}" for label in named)

    def _function(self, model, arrays):
        logits = self.reader.scores(model, arrays)
        return jax.nn.sigmoid(logits) if self._several else jax.nn.softmax(logits, axis=-1)

    def _row(self, found):
        best = int(np.argmax(found))
        labels = self.subject.labels
        row = {"label": labels[best], "score": number(found[best])}
        if self._several:
            pairs = zip(labels, found, strict=True)
            row["labels"] = [name for name, share in pairs if share > 0.5]
        return row | dict(zip(self._names, map(number, found), strict=False))


class NumberPredictor(TextPredictor):
    """A number: regression."""

    def _function(self, model, arrays):
        scores = self.reader.scores(model, arrays)
        return scores.reshape(len(scores))

    def _row(self, found):
        return {"score": number(found)}


class EmbeddingPredictor(TextPredictor):
    """A vector: the hidden states of a text, pooled.

    Args:
        subject: The model.
        pooling: The mean over the tokens, or the state of the first or of the last one.
        normalize: Whether vectors have length 1.
    """

    def __init__(self, subject: Subject, pooling: Pooling = "mean", normalize: bool = False):
        super().__init__(subject)
        self._pooling, self._normalize = pooling, normalize

    def _function(self, model, arrays):
        hidden, valid = self.reader.states(model, arrays)
        return unit(pool(hidden, valid, self._pooling), self._normalize)

    def _row(self, found):
        return {"embedding": [number(value) for value in found]}


class ProjectionPredictor(TextPredictor):
    """The vector that a projection head gives (CLIP, SigLIP)."""

    def __init__(self, subject: Subject, normalize: bool = False):
        super().__init__(subject)
        self._normalize = normalize

    def _function(self, model, arrays):
        return unit(self.reader.scores(model, arrays), self._normalize)

    def _row(self, found):
        return {"embedding": [number(value) for value in found]}


def unit(vectors: jax.Array, wanted: bool) -> jax.Array:
    """Returns float32 vectors [B, D], of length 1 if that is wanted."""
    vectors = vectors.astype(jnp.float32)
    if not wanted:
        return vectors
    lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / jnp.maximum(lengths, 1e-12)
