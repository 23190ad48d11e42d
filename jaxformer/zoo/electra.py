"""ELECTRA: BERT that tells replaced tokens from original ones; its generator is a small BERT."""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp

from jaxformer.functional.losses.cross_entropy import binary_cross_entropy
from jaxformer.hub.fields import ConfigMap, read_activation
from jaxformer.hub.flax_format import Difference, FlaxFormat
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import (
    DecoderConfig,
    Dense,
    EncoderConfig,
    MultipleChoice,
    TokenClassification,
)
from jaxformer.zoo.common.bert_like import (
    FIELDS,
    LABELS,
    READS_ENCODER,
    body,
    causal,
    embedding_size,
    encoder_or_decoder,
    over_vocabulary,
)


@dataclass(frozen=True)
class ReplacedTokensTask(Task):
    """Whether each token is a replaced one."""

    pre_trains = True

    def heads(self, hf_config):
        dense = Dense(read_activation(hf_config, "hidden_act", "gelu"))
        return (TokenClassification(num_labels=1, dense=dense),)

    def outputs(self, model, states, inputs, hf_config):
        logits = model.heads["tags"].scores(states, states.key)[..., 0]
        outputs = {"logits": logits}
        if "labels" in inputs:
            losses = binary_cross_entropy(logits, inputs["labels"])
            counted = inputs.get("attention_mask", jnp.ones_like(inputs["labels"])) == 1
            outputs["loss"] = jnp.sum(jnp.where(counted, losses, 0.0)) / jnp.sum(counted)
        return outputs


@dataclass(frozen=True)
class _MultipleChoiceTask(MultipleChoiceTask):
    """Multiple choice by the first token, through a layer that config.json describes."""

    def heads(self, hf_config):
        hf_config.expect("summary_type", "first")
        hf_config.expect("summary_use_proj", True)
        return (
            MultipleChoice(dense=Dense(read_activation(hf_config, "summary_activation", "gelu"))),
        )


_FIELDS = (*READS_ENCODER, *FIELDS, embedding_size(128))
_DISCRIMINATOR = {
    "heads.tags.dense.linear": "discriminator_predictions.dense",
    "heads.tags.output": "discriminator_predictions.dense_prediction",
}


def _weight_map(config: EncoderConfig | DecoderConfig) -> WeightMap:
    """The names of the tensors; a classifier has a dense layer instead of a pooler."""
    names = body("electra", config) | LABELS
    names |= {
        "transformer.inputs.projection": "electra.embeddings_project",
        **over_vocabulary(
            dense="generator_predictions.dense",
            norm="generator_predictions.LayerNorm",
            kernel="generator_lm_head.weight",
            bias="generator_lm_head.bias",
        ),
        "pooler": "classifier.dense",
        "heads.label.output": "classifier.out_proj",
        "heads.choice.dense.linear": "sequence_summary.summary",
    }
    if any(isinstance(head, TokenClassification) and head.dense for head in config.heads):
        names |= _DISCRIMINATOR
    return WeightMap(names)


FORMATS = (
    ModelFormat(
        model_type="electra",
        config_map=ConfigMap(partial(encoder_or_decoder, pooler=None), _FIELDS),
        weight_map=_weight_map,
        architectures=(
            Architecture("ElectraForPreTraining", ReplacedTokensTask()),
            Architecture("ElectraForMaskedLM", MaskedLMTask("gelu")),
            Architecture(
                "ElectraForSequenceClassification", SequenceClassificationTask(), {"pooler": "gelu"}
            ),
            Architecture("ElectraForMultipleChoice", _MultipleChoiceTask()),
            Architecture("ElectraForTokenClassification", TokenClassificationTask()),
            Architecture("ElectraForQuestionAnswering", QuestionAnsweringTask()),
            Architecture("ElectraModel", Task()),
            causal("ElectraForCausalLM", activation="gelu"),
        ),
        prefix="electra.",
        reads_encoder=True,
        flax=FlaxFormat(
            differences=(
                Difference("hidden_act", "its generator's head has it, not gelu", same=("gelu",)),
            )
        ),
        buffers=("*.position_ids",),
        copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
        harmless=("summary_*",),
        defaults={
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
    ),
)
