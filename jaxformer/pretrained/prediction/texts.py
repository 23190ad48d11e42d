"""Predicts a head's outputs, or embeddings, for rows of texts."""

import abc
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.models import Head
from jaxformer.models.heads.base import PredictionOptions, embedding, pool
from jaxformer.pretrained.prediction.batches import Batches
from jaxformer.pretrained.prediction.predictor import Prediction, Predictor, Subject

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
        """Returns the function that is computed for a batch."""

    @abc.abstractmethod
    def _row(self, found: np.ndarray) -> Prediction:
        """Returns the prediction for a row from the results of `_function`."""


class RowPredictor(TextPredictor):
    """Predicts `Head.prediction` for a row."""

    def __init__(self, subject: Subject, head: Head, options: PredictionOptions):
        super().__init__(subject)
        self._head, self._options = head, options

    def _function(self, model, arrays):
        return self._head.probabilities(self.reader.scores(model, arrays))

    def _row(self, found):
        return self._head.prediction(found, self._options)


class EmbeddingPredictor(TextPredictor):
    """Predicts a vector: the pooled hidden states of a text."""

    def __init__(self, subject: Subject, pooling: Pooling = "mean", normalize: bool = False):
        super().__init__(subject)
        self._pooling, self._normalize = pooling, normalize

    def _function(self, model, arrays):
        hidden, valid = self.reader.states(model, arrays)
        return pool(hidden, valid, self._pooling).astype(jnp.float32)

    def _row(self, found):
        return embedding(found, self._normalize)
