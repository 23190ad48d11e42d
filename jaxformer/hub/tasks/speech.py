"""The heads, outputs and losses of speech classes: transcripts, and labels of clips."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from jaxformer.functional.losses.ctc import ctc_loss
from jaxformer.hub.tasks.classes import Seq2SeqLMTask, SequenceClassificationTask, Task, scored
from jaxformer.models import CTC, Dense
from jaxformer.models.heads.labels import Pooling


@dataclass(frozen=True)
class CTCTask(Task):
    """A transcript by connectionist temporal classification."""

    head_types = (CTC,)
    logits_of = "ctc"

    def heads(self, hf_config):
        blank = hf_config.number("pad_token_id", 0)
        return (CTC(vocab_size=hf_config.number("vocab_size", 32), blank=blank),)

    def outputs(self, model, states, inputs, hf_config):
        def loss(logits, labels):
            real = labels >= 0
            count = jnp.sum(real, axis=1, dtype=jnp.int32)
            order = jnp.argsort(~real, axis=1, stable=True)  # -100 may stand anywhere
            labels = jnp.take_along_axis(labels, order, axis=1)
            valid = states.valid
            valid = jnp.ones(logits.shape[:2], bool) if valid is None else valid
            losses, _ = ctc_loss(logits, valid, labels, count, blank=model.heads["ctc"].blank)
            # PyTorch's "mean" is one over the labels of each row, then over the rows.
            if hf_config.choose("ctc_loss_reduction", {"sum": False, "mean": True}, "sum"):
                return jnp.mean(losses / jnp.maximum(count, 1))
            return jnp.sum(losses)

        return scored(model.heads["ctc"].scores(states), inputs, loss)


@dataclass(frozen=True)
class TranscriptTask(Seq2SeqLMTask):
    """The next token of a transcript at each position."""


@dataclass(frozen=True)
class ClipClassificationTask(SequenceClassificationTask):
    """A label of a clip: the mean over its projected frames."""

    pooling: Pooling = "late"

    def heads(self, hf_config):
        dense = Dense(None, width=hf_config.number("classifier_proj_size", 256))
        mixes = bool(hf_config.take("use_weighted_layer_sum", False))
        heads = super().heads(hf_config)
        return tuple(replace(each, dense=dense, mixes_layers=mixes) for each in heads)
