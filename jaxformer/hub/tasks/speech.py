"""The heads, outputs and losses of speech classes: transcripts, and labels of clips."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp

from jaxformer.hub.tasks.classes import Seq2SeqLMTask, SequenceClassificationTask, Task, scored
from jaxformer.models import CTC, Dense, QuantizedFrames
from jaxformer.models.heads.labels import Pooling
from jaxformer.models.heads.transcript import ctc_loss


@dataclass(frozen=True)
class CTCTask(Task):
    """A transcript by connectionist temporal classification."""

    head_types = (CTC,)
    logits_of = "ctc"
    FIELDS: ClassVar = {"vocab_size": "vocab_size", "blank": "pad_token_id"}

    def outputs(self, model, states, inputs, hf_config):
        def loss(logits, labels):
            real = labels >= 0
            count = jnp.sum(real, axis=1, dtype=jnp.int32)
            order = jnp.argsort(~real, axis=1, stable=True)  # -100 may occur anywhere
            labels = jnp.take_along_axis(labels, order, axis=1)
            valid = states.valid
            valid = jnp.ones(logits.shape[:2], bool) if valid is None else valid
            losses, _ = ctc_loss(logits, valid, labels, count, blank=model.heads["ctc"].blank)
            # PyTorch's "mean" averages over the labels of each row, then over the rows.
            if hf_config.choose("ctc_loss_reduction", {"sum": False, "mean": True}, "sum"):
                return jnp.mean(losses / jnp.maximum(count, 1))
            return jnp.sum(losses)

        return scored(model.heads["ctc"].scores(states), inputs, loss)


@dataclass(frozen=True)
class TranscriptTask(Seq2SeqLMTask):
    """Next-token prediction for transcripts."""


@dataclass(frozen=True)
class ClipClassificationTask(SequenceClassificationTask):
    """A label of a clip: the mean over its projected frames."""

    pooling: Pooling = "late"

    def heads(self, hf_config):
        dense = Dense(None, width=hf_config.number("classifier_proj_size", 256))
        mixes = bool(hf_config.take("use_weighted_layer_sum", False))
        heads = super().heads(hf_config)
        return tuple(replace(each, dense=dense, mixes_layers=mixes) for each in heads)


@dataclass(frozen=True)
class QuantizedFramesTask(Task):
    """Identifies the quantized frame at each masked position among negatives (wav2vec 2.0)."""

    head_types = (QuantizedFrames,)
    pre_trains = True
    FIELDS: ClassVar = {
        "num_codebooks": "num_codevector_groups",
        "codes": "num_codevectors_per_group",
        "code_dim": "codevector_dim",
        "width": "proj_codevector_dim",
        "num_negatives": "num_negatives",
        "temperature": "contrastive_logits_temperature",
        "diversity_weight": "diversity_loss_weight",
        "dropout": "feat_quantizer_dropout",
    }

    def outputs(self, model, states, inputs, hf_config):
        head = model.heads["quantized_frames"]
        masked = inputs.get("mask_time_indices")
        masked = None if masked is None else masked > 0
        temperature, gumbel_key = inputs.get("gumbel_temperature", 1.0), inputs.get("gumbel_rng")
        compared = head.compared(states, masked, states.key, temperature, gumbel_key)
        outputs = {
            "projected_states": compared.states,
            "projected_quantized_states": compared.quantized,
            "codevector_perplexity": jnp.sum(compared.perplexities),
        }
        sampled = inputs.get("sampled_negative_indices")
        if sampled is None or masked is None:
            return outputs
        # Frames are numbered across rows.
        contrastive, diversity, _ = head.losses(compared, masked, sampled % masked.shape[1])
        loss = contrastive + head.head.diversity_weight * diversity
        return outputs | {
            "loss": loss,
            "contrastive_loss": contrastive,
            "diversity_loss": diversity,
        }
