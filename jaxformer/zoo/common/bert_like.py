"""Shared parts of BERT and its relatives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import (
    Activation,
    Computed,
    ConfigMap,
    Expect,
    Field,
    LearnedPositions,
    NormEps,
    Number,
    PaddingId,
    Value,
    numbers,
    read_activation,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, CountedByIds, ModelFormat
from jaxformer.hub.tasks.classes import (
    CausalLMTask,
    MaskedLMTask,
    NextSentenceTask,
    PreTrainingTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import (
    Classification,
    DecoderConfig,
    Dense,
    EncoderConfig,
    LanguageModel,
    MaskedLanguageModel,
)
from jaxformer.models.model import ModelConfig
from jaxformer.nn.block import BlockConfig
from jaxformer.nn.config import TokenEmbeddings, TransformerConfig
from jaxformer.zoo.common.basics import BASE_SIZES, NUMBERS, projections, sized
from jaxformer.zoo.common.cross_attention import KEPT_CROSS_ATTENTION, keeps_cross_attention
from jaxformer.zoo.common.encoders import of_family


def bert(num_layers: int, model_dim: int, num_heads: int, **changes: Any) -> EncoderConfig:
    """Returns BERT's architecture in any size, with its pre-training heads."""
    fields = {
        "vocab_size": 30522,
        "position": Learned(max_length=512),
        "embeddings": replace(EncoderConfig.embeddings, token_types=2),
        "pooler": "tanh",
        "heads": (MaskedLanguageModel(), Classification(label="next_sentence")),
    }
    return sized(EncoderConfig, num_layers, model_dim, num_heads, **(fields | changes))


def encoder_or_decoder(
    is_decoder: bool = False, block: BlockConfig | None = None, **fields: Any
) -> EncoderConfig | DecoderConfig:
    """Returns BERT's architecture; in a decoder, each token sees only those before it."""
    config = bert(**fields)
    if is_decoder:
        return of_family(DecoderConfig, config, block=config.block if block is None else block)
    if block is not None:
        raise ConfigError("add_cross_attention = True: must be false where is_decoder is")
    return config


ENCODER = Expect("is_decoder", False)
"""The field of systems without causal classes."""
ENCODER_OR_DECODER = Computed(
    lambda hf_config: {"is_decoder": hf_config.take("is_decoder", False)},
    lambda config: {"is_decoder": True} if config.causal else {},
)
"""The field of systems with causal classes, for `encoder_or_decoder`."""
READS_ENCODER = (ENCODER_OR_DECODER, KEPT_CROSS_ATTENTION)
"""The fields of systems whose causal classes may have cross-attention."""
TOKEN_TYPES = Number("embeddings.token_types", "type_vocab_size", 2)
FIELDS = (
    Expect("position_embedding_type", "absolute"),
    *numbers(NUMBERS, BASE_SIZES | {"vocab_size": 30522}),
    LearnedPositions(default=512),
    TOKEN_TYPES,
    PaddingId(default=0),
    Activation(default="gelu"),
    NormEps(default=1e-12, also=("embeddings.norm",)),
    Value("tie_embeddings", "tie_word_embeddings", True),
    Number("dropout", "hidden_dropout_prob", 0.1),
    Number("self_attention.dropout", "attention_probs_dropout_prob", 0.1),
)
"""The fields of config.json that all relatives have, except `ENCODER` or `ENCODER_OR_DECODER`."""
_SELF = ("self.query", "self.key", "self.value")
BLOCK = {
    **projections("attention", "output.dense", parts=_SELF),
    "norms.0": "attention.output.LayerNorm",
    "sublayers.1.up": "intermediate.dense",
    "sublayers.1.down": "output.dense",
    "norms.1": "output.LayerNorm",
}
_CROSS_ATTENTION = projections("crossattention", "output.dense", 1, _SELF)
# Cross-attention is the second sublayer, so the feed-forward layer is the third.
_BLOCK_WITH_CROSS_ATTENTION = {
    **{
        own.replace("sublayers.1.", "sublayers.2.").replace("norms.1", "norms.2"): name
        for own, name in BLOCK.items()
    },
    **_CROSS_ATTENTION,
    "norms.1": "crossattention.output.LayerNorm",
}
_BLOCK_WITH_UNUSED = {
    **BLOCK,
    **{own.replace("sublayers.1", "unused.0"): name for own, name in _CROSS_ATTENTION.items()},
    "unused.1": "crossattention.output.LayerNorm",
}


def body(
    name: str, config: ModelConfig | None = None, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the names of the modules below the heads; `own` are those in a block that differ."""
    embeddings = f"{name}.embeddings"
    cross = getattr(config, "cross_attention", None) is not None
    blocks = _BLOCK_WITH_CROSS_ATTENTION if cross else BLOCK
    if config is not None and keeps_cross_attention(config):
        blocks = _BLOCK_WITH_UNUSED
    return {
        "embedding.table": f"{embeddings}.word_embeddings.weight",
        "transformer.inputs.position_table": f"{embeddings}.position_embeddings.weight",
        "transformer.inputs.kinds.token_types": f"{embeddings}.token_type_embeddings.weight",
        "transformer.inputs.kinds.task_types": f"{embeddings}.task_type_embeddings.weight",
        "transformer.inputs.embedding_norm": f"{embeddings}.LayerNorm",
        **block("transformer", f"{name}.encoder.layer.{{}}", blocks | (own or {})),
        "pooler": f"{name}.pooler.dense",
    }


LABELS = {
    "heads.label.output": "classifier",
    "heads.choice.output": "classifier",
    "heads.tags.output": "classifier",
    "heads.span.output": "qa_outputs",
}


def over_vocabulary(dense: str, norm: str, kernel: str, bias: str) -> dict[str, str]:
    """Returns the names of the heads over the vocabulary: of masked tokens, and of the next one."""
    masked = "heads.masked_language_model"
    causal = "heads.language_model"
    return {
        f"{masked}.dense": dense,
        f"{masked}.norm": norm,
        f"{causal}.dense.linear": dense,
        f"{causal}.dense.norm": norm,
        **{f"{head}.kernel": kernel for head in (masked, causal)},
        **{f"{head}.bias": bias for head in (masked, causal)},
    }


def named(names: Mapping[str, str], bias: str, config: TransformerConfig) -> WeightMap:
    """Returns the names of the tensors of a model whose file may have the bias of its logits twice.

    With an untied table, transformers uses the decoder's bias and ignores the head's.
    """
    if config.tie_embeddings:
        return WeightMap(names)
    other = f"{bias.removesuffix('.bias')}.decoder.bias"
    own = {path: other if name == bias else name for path, name in names.items()}
    unread = [head for head in config.heads if getattr(head, "unread_bias", False)]
    own |= {f"heads.{head.name}.unread_bias": bias for head in unread}
    return WeightMap(own, twins={} if unread else {bias: other})


def embedding_size(default: int | None) -> Computed:
    """Returns the field of the width of embeddings, which may be narrower than the model."""

    def read(hf_config: HFConfig) -> dict[str, Any]:
        width = hf_config.number("embedding_size", default)
        return {"embeddings.dim": None if width == hf_config.number("hidden_size", 768) else width}

    return Computed(read, lambda config: {"embedding_size": config.embedding_width})


def head_copies(name: str, head: str = "cls.predictions") -> dict[str, str]:
    """Returns the tensors of a head that are copies of others; `name` is the body's, such as
    "bert".
    """
    return {
        f"{head}.decoder.weight": f"{name}.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


BIAS = "cls.predictions.bias"
HEADS = {
    **over_vocabulary(
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        kernel="cls.predictions.decoder.weight",
        bias=BIAS,
    ),
    "heads.next_sentence.output": "cls.seq_relationship",
}
"""Module of a pre-training head -> its name in BERT and ERNIE."""
NO_POOLER = {"pooler": None}


@dataclass(frozen=True)
class DenseCausalLMTask(CausalLMTask):
    """The next token, from the state after a dense layer, activation and norm."""

    activation: str | None = None
    """The head's activation; None: that of the model, "hidden_act"."""

    def heads(self, hf_config):
        name = self.activation or read_activation(hf_config, "hidden_act", "gelu")
        return (LanguageModel(dense=Dense(name, norm=True)),)


def causal(name: str, *aliases: str, activation: str | None = None) -> Architecture:
    """Returns the causal class of a system of encoders; see `DenseCausalLMTask`."""
    task = DenseCausalLMTask(activation)
    return Architecture(name, task, fields={"is_decoder": True}, aliases=aliases)


def with_labels(name: str) -> tuple[Architecture, ...]:
    """Returns the classes with labels and the bare one, whose names begin with `name`: "Bert"."""
    return (
        Architecture(f"{name}ForSequenceClassification", SequenceClassificationTask()),
        Architecture(f"{name}ForMultipleChoice", MultipleChoiceTask()),
        Architecture(f"{name}ForTokenClassification", TokenClassificationTask(), NO_POOLER),
        Architecture(f"{name}ForQuestionAnswering", QuestionAnsweringTask(), NO_POOLER),
        Architecture(f"{name}Model", Task()),
    )


def bert_format(name: str, causal_class: Architecture, *own: Field, **parts: Any) -> ModelFormat:
    """Returns the format of BERT or ERNIE, whose class names begin with `name`: "Bert"."""
    kind = name.lower()
    pre_training = PreTrainingTask("next_sentence", "seq_relationship_logits")
    return ModelFormat(
        model_type=kind,
        config_map=ConfigMap(encoder_or_decoder, (*READS_ENCODER, *FIELDS, *own)),
        weight_map=lambda config: named(body(kind, config) | LABELS | HEADS, BIAS, config),
        architectures=(
            Architecture(f"{name}ForPreTraining", pre_training),
            Architecture(f"{name}ForMaskedLM", MaskedLMTask(), NO_POOLER),
            Architecture(f"{name}ForNextSentencePrediction", NextSentenceTask()),
            *with_labels(name),
            causal_class,
        ),
        prefix=f"{kind}.",
        reads_encoder=True,
        buffers=("*.position_ids",),
        copies=head_copies(kind),
        # Fields of config.json in the first files of BERT that no class reads.
        harmless=("directionality", "pooler_*"),
        **parts,
    )


# RoBERTa and MPNet ------------------------------------------------------------------------------

ROBERTA = {
    "vocab_size": 50265,
    "position": Learned(max_length=512, offset=2),
    "pooler": None,
    "norm": LayerNorm(eps=1e-5),
    "embeddings": TokenEmbeddings(norm=LayerNorm(eps=1e-5), token_types=1),
    "heads": (MaskedLanguageModel(),),
}
"""How RoBERTa differs from BERT."""


def _read_positions(hf_config: HFConfig) -> dict[str, Any]:
    """Reads positions, which begin after the padding id."""
    padding_id = hf_config.number("pad_token_id")
    rows = hf_config.number("max_position_embeddings", 512)
    return {"position": Learned(max_length=rows - padding_id - 1, offset=padding_id + 1)}


def _write_positions(config: EncoderConfig) -> dict[str, Any]:
    position = config.position
    return {
        "max_position_embeddings": position.offset + position.max_length,
        "pad_token_id": position.offset - 1,
    }


ROBERTA_POSITIONS = Computed(_read_positions, _write_positions)
ROBERTA_FIELDS = (*FIELDS, ROBERTA_POSITIONS)
LM_HEAD_BIAS = "lm_head.bias"
LM_HEAD = over_vocabulary(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    kernel="lm_head.decoder.weight",
    bias=LM_HEAD_BIAS,
)


def with_classifier(names: Mapping[str, str], config: EncoderConfig) -> dict[str, str]:
    """Returns the names of the modules; a sequence classifier has its own pooler."""
    if not any(head.name == "label" for head in config.heads):
        return dict(names)
    return {**names, "pooler": "classifier.dense", "heads.label.output": "classifier.out_proj"}


def roberta_architectures(name: str) -> tuple[Architecture, ...]:
    """Returns the encoders of RoBERTa and MPNet, whose names begin with `name`: "Roberta"."""
    masked = Architecture(f"{name}ForMaskedLM", MaskedLMTask("gelu"), NO_POOLER)
    return (masked, *with_labels(name))


def roberta_format(
    model_type: str,
    name: str,
    config_map: ConfigMap,
    names: Callable[[ModelConfig], Mapping[str, str]],
    defaults: Mapping[str, Any],
    *,
    prefix: str = "roberta",
    **parts: Any,
) -> ModelFormat:
    """Returns the format of RoBERTa or a relative, whose class names begin with `name`: "Roberta".

    `names` returns the names of a body's modules, and `parts` are other fields of `ModelFormat`.
    """

    def weight_map(config: ModelConfig) -> WeightMap:
        own = with_classifier({**names(config), **LABELS, **LM_HEAD}, config)
        return named(own, LM_HEAD_BIAS, config)

    fields = {
        "architectures": (
            *roberta_architectures(name),
            causal(f"{name}ForCausalLM", activation="gelu"),
        ),
        "prefix": f"{prefix}.",
        "positions": CountedByIds(),
        "buffers": ("*.position_ids",),
        "copies": head_copies(prefix, "lm_head"),
        "defaults": {"pad_token_id": 1, **defaults},
    }
    return ModelFormat(model_type, config_map, weight_map, **(fields | parts))
