"""A head that writes the labels of frames by connectionist temporal classification."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from jaxformer.checks import check_argument, check_field, check_fields
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    assert_floating,
    assert_integers,
    per_device,
    place,
    spec_of,
)
from jaxformer.functional.dropout import dropout
from jaxformer.functional.losses.alignments import collapsed, frames_needed
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.functional.losses.terms import add_metric
from jaxformer.models.heads.base import Head, HeadModule, Predictions, Unit, array
from jaxformer.nn.config import SIZE, TransformerConfig
from jaxformer.nn.layers import Linear, normal


@dataclass(frozen=True)
class CTC(Head):
    """Transcribes frames, of which many share a label and most have none (wav2vec 2.0, HuBERT).

    Reads "transcript", int `[B, U]`, "transcript_length", int `[B]`, and "transcript_weights",
    float `[B]`. The loss is the negative log-likelihood of the labels over all alignments, and its
    weight the number of labels. A row whose labels need more frames than it has counts as without a
    loss.

    References:
        Graves et al., 2006 (https://www.cs.toronto.edu/~graves/icml_2006.pdf).
    """

    name: ClassVar[str] = "ctc"
    unit: ClassVar[Unit] = "transcript"

    vocab_size: int = 32
    """Classes of a frame: the labels and the blank (V)."""
    blank: int = 0
    """The id of the blank: the padding id of the tokenizer."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "ctc", vocab_size=SIZE)
        known = 0 <= self.blank < self.vocab_size
        check_field(self, "blank", known, f"from 0 to vocab_size - 1 = {self.vocab_size - 1}")

    @classmethod
    def kind(cls):
        return "ctc"

    @classmethod
    def for_model(cls, model, num_labels):
        return cls() if num_labels is None else cls(num_labels)

    def build(self, key, config):
        return CTCHead(key, config, self)

    def reads(self, rows, length):
        return {
            "transcript": array(rows, length),
            "transcript_length": array(rows),
            "transcript_weights": array(rows, dtype=jnp.float32),
        }

    def choices(self, config):
        return self.vocab_size

    def products(self, config):
        return config.output_width * self.vocab_size

    def metrics(self, result, data):
        return data.validation.examples.error_rates(result)


class CTCHead(HeadModule):
    """Dropout and a linear layer on every frame's state."""

    weights = "transcript_weights"

    def __init__(self, key: jax.Array, config: TransformerConfig, head: CTC):
        """Declares the layer."""
        inputs, outputs = {"embed": config.output_width}, {"labels": head.vocab_size}
        self.output = Linear(key, inputs, outputs, normal(config.init_std), bias=True)
        self.dropout = config.dropout
        self.blank = head.blank

    def scores(self, outputs, key=None):
        """Returns the logits `[B, T, V]`."""
        return self.output(dropout(outputs.hidden, self.dropout, key)).astype(jnp.float32)

    def loss_weight(self, batch):
        """Returns the number of labels; a row without labels counts as one."""
        counts = jnp.maximum(batch["transcript_length"], 1).astype(jnp.float32)
        return jnp.sum(counts * batch[self.weights])

    def loss(self, outputs, batch, options, key):
        scores = self.scores(outputs, key)
        valid = _valid(outputs)
        labels, lengths = batch["transcript"], batch["transcript_length"]
        weights = batch[self.weights]
        assert_axes({"B": scores.shape[0]}, transcript_weights=(weights, "B"))
        losses, aligned = ctc_loss(scores, valid, labels, lengths, blank=self.blank)
        rows = jnp.maximum(jnp.sum(weights), 1.0)
        add_metric("unalignable", jnp.sum((~aligned) * weights) / rows)
        total = self.loss_weight(batch)
        found, count = self._decoded(scores, valid, labels.shape[1])
        real = jnp.arange(labels.shape[1])[None, :] < lengths[:, None]
        same = jnp.all((found == labels) | ~real, axis=1) & (count == lengths)
        counts = jnp.maximum(lengths, 1).astype(jnp.float32)
        zero = jnp.zeros((), jnp.float32)
        right = jnp.sum(same * counts * weights)
        return LossSums(jnp.sum(losses * weights), total, right, zero)

    def predictions(self, outputs, batch):
        """Returns the labels of the likeliest path, int `[B, T]` with blanks at the end."""
        valid, scores = _valid(outputs), self.scores(outputs)
        found, _ = collapsed(jnp.argmax(scores, axis=-1), valid, blank=self.blank)
        return Predictions(found, batch["transcript"], batch[self.weights])

    def _decoded(self, scores, valid, length):
        """The first `length` labels of the likeliest path, and the number of all labels."""
        found, count = collapsed(jnp.argmax(scores, axis=-1), valid, blank=self.blank)
        missing = max(length - found.shape[1], 0)
        found = jnp.pad(found, ((0, 0), (0, missing)), constant_values=self.blank)
        return found[:, :length], count


def ctc_loss(
    logits: jax.Array,
    valid: jax.Array,
    labels: jax.Array,
    lengths: jax.Array,
    *,
    blank: int,
) -> tuple[jax.Array, jax.Array]:
    r"""Returns the negative log-likelihood of label sequences, summed over all alignments.

    .. math:: -\log \sum_{\pi \in \mathcal{B}^{-1}(y)} \prod_t p_{t, \pi_t}

    Args:
        logits: float `[B, T, V]`.
        valid: bool `[B, T]`, the frames of each row, which precede its padding.
        labels: int `[B, U]`; a row without labels has only blank frames.
        lengths: int `[B]`, the labels of each row.
        blank: The id of the blank.

    Returns:
        The losses, float32 `[B]`, and bool `[B]`: whether the row has as many frames as its labels
        need. The loss of other rows, and its gradient, is 0.

    Raises:
        AssertionError: Shapes do not fit together, or an array has the wrong dtype.
        ArgumentError: The blank is not one of the classes.

    References:
        Graves et al., 2006 (https://www.cs.toronto.edu/~graves/icml_2006.pdf).
    """
    sizes = assert_axes(logits=(logits, "B T V"), labels=(labels, "B U"))
    assert_axes(sizes, valid=(valid, "B T"), lengths=(lengths, "B"))
    assert_floating(logits=logits)
    assert_bool(valid=valid)
    assert_integers(labels=labels, lengths=lengths)
    known = 0 <= blank < sizes["V"]
    check_argument("blank", blank, known, f"from 0 to {sizes['V'] - 1}")
    rows = spec_of(logits)
    if rows is not None:
        labels = place(labels, PartitionSpec(rows[0], None))
        lengths = place(lengths, PartitionSpec(rows[0]))
    real = jnp.arange(sizes["U"])[None, :] < lengths[:, None]
    frames = jnp.sum(valid, axis=1, dtype=jnp.int32)
    aligned = frames_needed(labels, lengths) <= frames
    # Rows that cannot be aligned are computed without labels, so that their gradient is finite too.
    real = real & aligned[:, None]
    losses = per_device(
        partial(optax.ctc_loss, blank_id=blank),
        logits.astype(jnp.float32),
        1.0 - valid.astype(jnp.float32),
        jnp.where(real, labels, blank),
        1.0 - real.astype(jnp.float32),
    )
    return jnp.where(aligned, losses, 0.0), aligned


def _valid(outputs):
    return jnp.ones(outputs.hidden.shape[:2], bool) if outputs.valid is None else outputs.valid
