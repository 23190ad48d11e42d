"""BigBird: BERT with block-sparse attention for long texts."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Computed, ConfigMap, Value, read_activation
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    PreTrainingTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import DecoderConfig, Dense, EncoderConfig, Head, ResidualMLP, Span
from jaxformer.models.heads.base import HeadModule
from jaxformer.nn import MLP, BlockSparseAttention, DotProductAttention, Linear, normal
from jaxformer.zoo.common.basics import embedding_scale
from jaxformer.zoo.common.bert_like import (
    BIAS,
    FIELDS,
    HEADS,
    LABELS,
    NO_POOLER,
    READS_ENCODER,
    DenseCausalLMTask,
    bert,
    body,
    encoder_or_decoder,
    head_copies,
    named,
)
from jaxformer.zoo.system import System

_CHANGES = {
    "vocab_size": 50358,
    "position": Learned(max_length=4096),
    "feed_forward": MLP(activation="gelu_tanh", gated=False, bias=True),
    "self_attention": BlockSparseAttention(block_size=64, num_random_blocks=3),
}
_SOURCE = (
    "Zaheer et al., 2020, https://arxiv.org/abs/2007.14062, which gives no counts; counted for the "
    "sizes of the released checkpoints"
)

SYSTEMS = (
    System("bigbird-roberta-base", bert(12, 768, 12, **_CHANGES), "128M", _SOURCE),
    System("bigbird-roberta-large", bert(24, 1024, 16, **_CHANGES), "360M", _SOURCE),
)

# Attention --------------------------------------------------------------------------------------

_FULL, _SPARSE = "original_full", "block_sparse"


def _read_attention(hf_config: HFConfig) -> dict[str, Any]:
    """Full or block-sparse attention; a decoder has full attention."""
    kind = hf_config.take("attention_type", _SPARSE)
    sizes = hf_config.number("block_size", 64), hf_config.number("num_random_blocks", 3)
    if kind not in (_FULL, _SPARSE):
        raise ConfigError(
            f"{hf_config.path}: attention_type = {kind!r}: must be {_SPARSE!r} or {_FULL!r}"
        )
    sparse = kind == _SPARSE and not hf_config.take("is_decoder", False)
    return {
        "self_attention": BlockSparseAttention(*sizes)
        if sparse
        else DotProductAttention(output_bias=True)
    }


def _write_attention(config: EncoderConfig | DecoderConfig) -> dict[str, Any]:
    attention = config.self_attention
    if not isinstance(attention, BlockSparseAttention):
        return {"attention_type": _FULL}
    sizes = {"block_size": attention.block_size, "num_random_blocks": attention.num_random_blocks}
    return {"attention_type": _SPARSE} | sizes


# Heads ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnusedPooler(Head):
    """The pooler of the causal class, which is in its files but never used."""

    name: ClassVar[str] = "pooler"

    def build(self, key, config):
        return UnusedPoolerModule(key, config)

    def reads(self, rows, length):
        return {}


class UnusedPoolerModule(HeadModule):
    """A linear layer that is never applied."""

    def __init__(self, key: jax.Array, config: DecoderConfig):
        """Declares the layer."""
        width = config.output_width
        std = normal(config.init_std)
        self.linear = Linear(key, {"embed": width}, {"pooled": width}, std, bias=True)

    def loss_weight(self, batch):
        return jnp.zeros((), jnp.float32)

    def loss(self, outputs, batch, options, key):
        zero = jnp.zeros((), jnp.float32)
        return LossSums(zero, zero, zero, zero)


@dataclass(frozen=True)
class _CausalLMTask(DenseCausalLMTask):
    """The next token; the class has a pooler as well."""

    def heads(self, hf_config):
        return (*super().heads(hf_config), UnusedPooler())


@dataclass(frozen=True)
class _SequenceClassificationTask(SequenceClassificationTask):
    """A label from the first state, even if it is padding, through a dense layer and activation."""

    def heads(self, hf_config):
        dense = Dense(read_activation(hf_config, "hidden_act", "gelu_new"))
        heads = super().heads(hf_config)
        return tuple(replace(head, pooling="first_state", dense=dense) for head in heads)

    def outputs(self, model, states, inputs, hf_config):
        return super().outputs(model, states._replace(valid=None), inputs, hf_config)


@dataclass(frozen=True)
class _QuestionAnsweringTask(QuestionAnsweringTask):
    """The ends of an answer outside the question, which ends at the first separator."""

    def heads(self, hf_config):
        return (Span(dense=ResidualMLP()),)

    def rows(self, inputs, hf_config):
        if "token_type_ids" in inputs or "input_ids" not in inputs:
            return inputs
        outside = ~_in_question(inputs["input_ids"], hf_config)
        return {**inputs, "token_type_ids": outside.astype(jnp.int32)}

    def excluded(self, inputs, hf_config):
        return _in_question(inputs["input_ids"], hf_config).at[:, 0].set(False)


def _in_question(ids: jax.Array, hf_config: HFConfig) -> jax.Array:
    """The tokens up to the first separator, or the first token if there is none."""
    ends = jnp.argmax(ids == hf_config.take("sep_token_id", 66), axis=1, keepdims=True)
    return jnp.arange(ids.shape[1])[None, :] <= ends


# Files ------------------------------------------------------------------------------------------

_NAMES = {
    **HEADS,
    **LABELS,
    "pooler": "bert.pooler",
    "heads.pooler.linear": "bert.pooler",
    "heads.span.dense.up": "qa_classifier.intermediate.dense",
    "heads.span.dense.down": "qa_classifier.output.dense",
    "heads.span.dense.norm": "qa_classifier.output.LayerNorm",
    "heads.span.output": "qa_classifier.qa_outputs",
}
_CLASSIFIER = {
    "heads.label.dense.linear": "classifier.dense",
    "heads.label.output": "classifier.out_proj",
}


def _weight_map(config: EncoderConfig | DecoderConfig) -> WeightMap:
    """The names of the tensors; a classifier of texts has a layer before its output."""
    has_label = any(head.name == "label" for head in config.heads)
    names = body("bert", config) | _NAMES | (_CLASSIFIER if has_label else {})
    return named(names, BIAS, config)


def _without_pooler(hf_config: HFConfig, name: str) -> dict[str, tuple[int, ...]]:
    """The Flax classes whose heads do not read the pooler had none."""
    width = hf_config.number("hidden_size")
    pooler = {"bert.pooler.weight": (width, width), "bert.pooler.bias": (width,)}
    return pooler if name.endswith(("MaskedLM", "TokenClassification", "CausalLM")) else {}


FORMATS = (
    ModelFormat(
        model_type="big_bird",
        config_map=ConfigMap(
            encoder_or_decoder,
            (
                *READS_ENCODER,
                *FIELDS,
                Computed(_read_attention, _write_attention),
                Value("self_attention.bias", "use_bias", True),
                embedding_scale("rescale_embeddings", False, "hidden_size", 768),
            ),
        ),
        weight_map=_weight_map,
        architectures=(
            Architecture(
                "BigBirdForPreTraining",
                PreTrainingTask("next_sentence", "seq_relationship_logits"),
            ),
            Architecture("BigBirdForMaskedLM", MaskedLMTask()),
            Architecture("BigBirdForSequenceClassification", _SequenceClassificationTask()),
            Architecture("BigBirdForMultipleChoice", MultipleChoiceTask()),
            Architecture("BigBirdForTokenClassification", TokenClassificationTask()),
            Architecture("BigBirdForQuestionAnswering", _QuestionAnsweringTask(), NO_POOLER),
            Architecture("BigBirdModel", Task()),
            Architecture("BigBirdForCausalLM", _CausalLMTask(), fields={"is_decoder": True}),
        ),
        prefix="bert.",
        flax=FlaxFormat(lacking=_without_pooler),
        buffers=("*.position_ids", "*.token_type_ids"),
        copies=head_copies("bert"),
        defaults={
            "vocab_size": 50358,
            "max_position_embeddings": 4096,
            "hidden_act": "gelu_new",
        },
    ),
)
