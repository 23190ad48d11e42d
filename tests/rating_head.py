"""A head in one file: a rating between 1 and some number, by ordinal regression."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional.losses.cross_entropy import LossSums, binary_cross_entropy
from jaxformer.models.heads.base import Head, HeadModule, array, number
from jaxformer.models.heads.metrics import flat
from jaxformer.nn.layers import Linear, normal


@dataclass(frozen=True)
class Rating(Head):
    """A rating r; output k of the linear layer is the log-odds of r > k."""

    predicts: ClassVar[bool] = True
    highest: int = 5
    """The best rating."""

    @property
    def name(self):
        return "rating"

    def build(self, key, config):
        return RatingHead(key, config, self)

    def reads(self, rows, length):
        return {"rating": array(rows), "rating_weights": array(rows, dtype=jnp.float32)}

    def metrics(self, result, data):
        return {"accuracy": result.accuracy, "mean_loss": result.loss}

    def baseline(self, train, validation):
        (seen, _), (asked, _) = (flat(x, "rating", "rating_weights") for x in (train, validation))
        return {"accuracy": float(np.mean(asked == np.median(seen)))}

    def probabilities(self, scores):
        return jax.nn.sigmoid(scores)

    def prediction(self, values, options):
        row = {"rating": 1 + int(np.sum(values > 0.5))}
        return row | ({"expected": number(1 + np.sum(values))} if options.scores else {})


class RatingHead(HeadModule):
    """A linear layer on the pooled state."""

    weights = "rating_weights"

    def __init__(self, key, config, head):
        inputs, outputs = {"embed": config.output_width}, {"labels": head.highest - 1}
        self.output = Linear(key, inputs, outputs, normal(config.init_std), bias=True)

    def scores(self, outputs, key=None):
        return self.output(outputs.pooled).astype(jnp.float32)

    def loss(self, outputs, batch, options, key):
        scores, ratings = self.scores(outputs, key), batch["rating"]
        above = ratings[:, None] > jnp.arange(1, scores.shape[1] + 1)[None, :]
        losses = jnp.mean(binary_cross_entropy(scores, above.astype(jnp.float32)), axis=-1)
        right = jnp.sum(scores > 0, axis=1) + 1 == ratings
        weights = batch["rating_weights"]
        totals = (jnp.sum(each * weights) for each in (losses, jnp.ones_like(losses), right))
        return LossSums(*totals, jnp.zeros((), jnp.float32))
