"""A head for extractive question answering."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxformer.checks import at_least, check_field
from jaxformer.functional.arrays import assert_axes, static
from jaxformer.models.heads import metrics
from jaxformer.models.heads.base import Head, HeadModule, Predictions, Unit, array, class_loss
from jaxformer.models.heads.dense import Dense, ResidualMLP
from jaxformer.models.heads.labels import build_dense
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, normal


@dataclass(frozen=True)
class Span(Head):
    """Predicts the first and last token of an answer within the sequence (SQuAD).

    Reads "span" int `[B, 2]` and "span_weights" `[B]`; the loss is the mean over both ends. The
    span of only the first token means no answer. Predicted spans lie where "span_places", bool `[B,
    T]`, is true, or anywhere outside padding without it.

    References:
        Devlin et al., BERT (https://arxiv.org/abs/1810.04805), sections 4.2 and 4.3.
    """

    name: ClassVar[str] = "span"
    unit: ClassVar[Unit] = "span"
    predicts: ClassVar[bool] = True
    longest: int = 30
    """Maximum number of tokens of a predicted span."""
    dense: Dense | ResidualMLP | None = None
    """A layer before the output (ModernBERT, BigBird), or None."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "longest", self.longest >= 1, "at least 1")

    def build(self, key, config):
        return SpanHead(key, config, self)

    def reads(self, rows, length):
        return {"span": array(rows, 2), "span_weights": array(rows, dtype=jnp.float32)}

    def metrics(self, result, data):
        return metrics.answer_scores(*data.validation.examples.best_answers(result))


class SpanHead(HeadModule):
    """A linear layer that scores every token as the first and as the last of the span."""

    weights = "span_weights"

    def __init__(self, key: jax.Array, config: TransformerConfig, head: Span):
        """Declares the layers."""
        keys = jax.random.split(key)
        inputs = {"embed": config.output_width}
        outputs = {"labels": 2}
        self.output = Linear(keys[0], inputs, outputs, normal(config.init_std), bias=True)
        self.dense = build_dense(keys[1], head.dense, config, config.output_width)
        self.longest = head.longest

    def scores(self, outputs, key=None):
        """Returns `[B, 2, T]`; a large negative number at padding."""
        hidden = outputs.hidden if self.dense is None else self.dense(outputs.hidden)
        logits_B2T = jnp.swapaxes(self.output(hidden).astype(jnp.float32), 1, 2)
        if outputs.valid is None:
            return logits_B2T
        return jnp.where(outputs.valid[:, None, :], logits_B2T, -1e9)

    def loss(self, outputs, batch, options, key):
        scores = self.scores(outputs, key)
        weights = batch["span_weights"]
        rows = {"B": scores.shape[0]}
        assert_axes(rows, span=(batch["span"], "B 2"), span_weights=(weights, "B"))
        halves = jnp.broadcast_to(weights[:, None] / 2, batch["span"].shape)
        return class_loss(scores, batch["span"], halves, options._replace(z_loss=0.0))

    def predictions(self, outputs, batch):
        """Returns the best span, and its score and that of no answer, `[B, 2]`, across windows."""
        scores = self.scores(outputs)
        nothing = scores[:, 0, 0] + scores[:, 1, 0]
        if "span_places" in batch:
            scores = jnp.where(batch["span_places"][:, None, :], scores, -1e9)
        spans, best = best_spans(scores, self.longest)
        scores = jnp.stack([best, nothing], axis=1)
        return Predictions(spans, batch["span"], batch["span_weights"], scores)


def best_spans(scores: jax.Array, longest: int) -> tuple[jax.Array, jax.Array]:
    r"""Returns the span with the largest sum of the scores of its ends.

    .. math:: \arg\max_{(i, j)} a_i + b_j, \quad 0 \le j - i < n

    Args:
        scores: `[B, 2, T]`: a, the scores of each token as the first, and b, as the last.
        longest: n, the maximum number of tokens of a span.

    Returns:
        The first and the last token, int32 `[B, 2]`, the shorter span in case of ties, and its sum,
        `[B]`.
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
