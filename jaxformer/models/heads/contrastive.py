"""The heads of dual encoders, which match the texts and images of a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxformer.functional.losses.contrastive import (
    contrastive_loss,
    everywhere,
    sigmoid_contrastive_loss,
)
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.models.heads import metrics
from jaxformer.models.heads.base import Head, HeadModule, Predictions, array


@dataclass(frozen=True)
class Contrastive(Head):
    """Matches each text to an image of the batch and each image to a text (CLIP).

    Reads "pair_weights" float `[B]`; a pair of weight 0 is ignored. The other pairs of the
    micro-batch, on all devices, are the negatives.

    References:
        Radford et al., 2021 (https://arxiv.org/abs/2103.00020), section 2.3.
    """

    name: ClassVar[str] = "contrastive"
    compares_rows: ClassVar[bool] = True
    function: ClassVar[Callable[..., LossSums]] = staticmethod(contrastive_loss)
    """The loss of the similarities of a batch."""

    def probabilities(self, logits: jax.Array) -> jax.Array:
        """Returns the probability of each text for an image, if exactly one of them matches.

        Args:
            logits: The similarities, float `[images, texts]`.

        Returns:
            float32 `[images, texts]`.
        """
        return jax.nn.softmax(logits.astype(jnp.float32), axis=-1)

    def build(self, key, config):
        return ContrastiveHead(self.function)

    def reads(self, rows, length):
        return {"pair_weights": array(rows, dtype=jnp.float32)}

    def metrics(self, result, data):
        return metrics.retrieval_scores(*result.predictions[:3])


@dataclass(frozen=True)
class SigmoidContrastive(Contrastive):
    """Classifies each combination of text and image of the batch as a pair or not (SigLIP).

    Reads the arrays of `Contrastive`. The model has a `logit_bias`.

    References:
        Zhai et al., 2023 (https://arxiv.org/abs/2303.15343), section 3.2.
    """

    function: ClassVar[Callable[..., LossSums]] = staticmethod(sigmoid_contrastive_loss)

    def probabilities(self, logits):
        """Returns the independent probability of each text for each image."""
        return jax.nn.sigmoid(logits.astype(jnp.float32))


class ContrastiveHead(HeadModule):
    """Computes the loss of the similarities of a batch; it has no parameters."""

    weights = "pair_weights"

    def __init__(self, function: Callable[..., LossSums]):
        """Takes the loss function."""
        self.function = function

    def scores(self, outputs, key=None):
        """Returns the similarity of each text and each image, `[texts, images]`."""
        return outputs.similarities

    def loss(self, outputs, batch, options, key):
        return self.function(outputs.similarities, batch["pair_weights"])

    def predictions(self, outputs, batch):
        """Returns the image of each text and the text of each image, as indices `[B, 2]`."""
        weights = everywhere(batch["pair_weights"])
        there = (weights[:, None] != 0) & (weights[None, :] != 0)
        logits = jnp.where(there, outputs.similarities, -jnp.inf)
        found = [jnp.argmax(logits, axis=1), jnp.argmax(logits.T, axis=1)]
        own = jnp.arange(len(weights))
        found = jnp.stack([everywhere(side) for side in found], axis=1)
        return Predictions(found, jnp.stack([own, own], axis=1), weights)


def unit_vectors(vectors: jax.Array) -> jax.Array:
    """Normalizes vectors to length 1 along the last axis, in float32."""
    vectors = vectors.astype(jnp.float32)
    return vectors / jnp.sqrt(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True))
