"""ModernBERT: an encoder with RoPE, windows, GeGLU and norms before the sublayers."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.hub.fields import (
    FULL,
    SLIDING,
    Activation,
    Computed,
    ConfigMap,
    Number,
    PaddingId,
    Value,
    numbers,
    read_activation,
    read_windows,
    write_activation,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.rope import read_layer_ropes, write_layer_ropes
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
    num_labels,
)
from jaxformer.hub.tasks.multiple_choice import FirstTokenChoiceTask
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import (
    Classification,
    Dense,
    EncoderConfig,
    MaskedLanguageModel,
    MultipleChoice,
    Span,
    TokenClassification,
)
from jaxformer.models.heads.labels import Pooling
from jaxformer.nn import MLP, PreNorm
from jaxformer.zoo.common.basics import BASE_SIZES, NUMBERS, fused_attention, fused_gate

_BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def _read_windows(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the windows of all layers, and the RoPE of layers with and without a window."""
    layers = hf_config.number("num_hidden_layers", 22)
    every = hf_config.number("global_attn_every_n_layers", 3)
    # Half of the window is on either side of a token, which also sees itself.
    window = hf_config.number("local_attention", 128) // 2 + 1
    kinds = [SLIDING if layer % every else FULL for layer in range(layers)]
    pattern = read_windows(hf_config, kinds, window)
    windows = pattern * (layers // len(pattern))
    ropes = read_layer_ropes(hf_config, _BASES, scaled=(FULL, SLIDING))
    return {
        "position": ropes[FULL],
        "window_position": ropes[SLIDING] if any(windows) else None,
        "windows": windows,
    }


def _write_windows(config: EncoderConfig) -> dict[str, Any]:
    sizes = [window for window in config.windows if window is not None]
    kinds = [FULL if window is None else SLIDING for window in config.windows]
    ropes = {FULL: config.position, SLIDING: config.window_position or config.position}
    return {
        "layer_types": kinds * (config.num_layers // len(kinds)),
        "local_attention": 2 * (sizes[0] - 1) if sizes else 128,
        **write_layer_ropes(ropes, {kind: name for kind, (name, _) in _BASES.items()}, FULL),
    }


def _read_norms(hf_config: HFConfig) -> dict[str, Any]:
    norm = LayerNorm(hf_config.number("norm_eps", 1e-5), hf_config.take("norm_bias", False))
    return {"norm": norm, "embeddings.norm": norm}


def _write_norms(config: EncoderConfig) -> dict[str, Any]:
    return {"norm_eps": config.norm.eps, "norm_bias": config.norm.bias}


def _write_head(config: EncoderConfig) -> dict[str, Any]:
    """Returns the fields of the layer that all heads have before their output."""
    values = {}
    for head in config.heads:
        if isinstance(head, MaskedLanguageModel):
            dense = Dense(head.activation or config.feed_forward.activation, head.dense_bias)
        else:
            dense = getattr(head, "dense", None)
        if isinstance(head, Classification):
            values["classifier_pooling"] = _POOLINGS.get(head.pooling, head.pooling)
        if dense is not None:
            values["classifier_activation"] = write_activation(dense.activation)
            values["classifier_bias"] = dense.bias
    return values


_POOLINGS = {"first": "cls", "mean": "mean"}
_FIELDS = (
    Computed(_read_windows, _write_windows),
    *numbers(
        NUMBERS,
        BASE_SIZES | {"num_hidden_layers": 22, "intermediate_size": 1152, "vocab_size": 50368},
    ),
    PaddingId(),
    Computed(_read_norms, _write_norms),
    Activation(theirs="hidden_activation", default="gelu"),
    Value("self_attention.bias", "attention_bias", False, also=("self_attention.output_bias",)),
    Value("feed_forward.bias", "mlp_bias", False),
    Value("logits.bias", "decoder_bias", True),
    Value("tie_embeddings", "tie_word_embeddings", True),
    Number("dropout", "mlp_dropout", 0.0),
    Computed(
        lambda hf_config: {"embeddings.dropout": hf_config.number("embedding_dropout", 0.0)},
        _write_head,
    ),
    Number("self_attention.dropout", "attention_dropout", 0.0),
)
_modernbert = partial(
    EncoderConfig, residual=PreNorm(first_norm=False), feed_forward=MLP(activation="gelu")
)


def _dense(hf_config: HFConfig) -> Dense:
    """The layer that all heads have before their output."""
    bias = hf_config.take("classifier_bias", False)
    return Dense(read_activation(hf_config, "classifier_activation", "gelu"), bias=bias, norm=True)


def _pooling(hf_config: HFConfig) -> Pooling:
    theirs = {name: ours for ours, name in _POOLINGS.items()}
    return hf_config.choose("classifier_pooling", theirs, "cls")


@dataclass(frozen=True)
class _MaskedLM(MaskedLMTask):
    """Masked language modelling with a layer before the output."""

    def heads(self, hf_config):
        hf_config.expect("sparse_prediction", False)
        dense = _dense(hf_config)
        return (MaskedLanguageModel(activation=dense.activation, dense_bias=dense.bias),)


@dataclass(frozen=True)
class _SequenceClassification(SequenceClassificationTask):
    """Sequence classification with a layer before the output, and the pooling in config.json."""

    def heads(self, hf_config):
        labels = num_labels(hf_config)
        pooling = _pooling(hf_config)
        dense = _dense(hf_config)
        return (Classification(num_labels=labels, pooling=pooling, dense=dense),)


@dataclass(frozen=True)
class _MultipleChoice(FirstTokenChoiceTask):
    """Multiple choice with a layer before the output, and the pooling in config.json."""

    def heads(self, hf_config):
        return (MultipleChoice(pooling=_pooling(hf_config), dense=_dense(hf_config)),)


@dataclass(frozen=True)
class _TokenClassification(TokenClassificationTask):
    """Token classification with a layer before the output."""

    def heads(self, hf_config):
        return (TokenClassification(num_labels=num_labels(hf_config), dense=_dense(hf_config)),)


@dataclass(frozen=True)
class _QuestionAnswering(QuestionAnsweringTask):
    """Question answering with a layer before the output."""

    def heads(self, hf_config):
        return (Span(dense=_dense(hf_config)),)


_LABEL_HEADS = ("label", "choice", "tags", "span")
_NAMES = {
    "embedding.table": "model.embeddings.tok_embeddings.weight",
    "transformer.inputs.embedding_norm": "model.embeddings.norm",
    **block(
        "transformer",
        "model.layers.{}",
        {
            "norms.0": "attn_norm",
            "sublayers.0.attention.output": "attn.Wo",
            "norms.1": "mlp_norm",
            "sublayers.1.down": "mlp.Wo",
        },
    ),
    "transformer.final_norm": "model.final_norm",
    "heads.masked_language_model.dense": "head.dense",
    "heads.masked_language_model.norm": "head.norm",
    "heads.masked_language_model.kernel": "decoder.weight",
    "heads.masked_language_model.bias": "decoder.bias",
    **{f"heads.{head}.dense.linear": "head.dense" for head in _LABEL_HEADS},
    **{f"heads.{head}.dense.norm": "head.norm" for head in _LABEL_HEADS},
    **{f"heads.{head}.output": "classifier" for head in _LABEL_HEADS},
}
_FUSED = (
    fused_attention("model.layers.{}.attn.Wqkv", Concatenated()),
    fused_gate("model.layers.{}.mlp.Wi"),
)

FORMATS = (
    ModelFormat(
        model_type="modernbert",
        config_map=ConfigMap(_modernbert, _FIELDS),
        weight_map=lambda config: WeightMap(_NAMES, fused=_FUSED),
        architectures=(
            Architecture("ModernBertForMaskedLM", _MaskedLM()),
            Architecture("ModernBertForSequenceClassification", _SequenceClassification()),
            Architecture("ModernBertForMultipleChoice", _MultipleChoice()),
            Architecture("ModernBertForTokenClassification", _TokenClassification()),
            Architecture("ModernBertForQuestionAnswering", _QuestionAnswering()),
            Architecture("ModernBertModel", Task()),
        ),
        prefix="model.",
        copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
        defaults={"pad_token_id": 50283},
        harmless=(
            # Only the sequence classifier reads them.
            "classifier_*",
            "compile_model",
            "deterministic_flash_attn",
            "embedding_dropout",
            "layer_norm_eps",
            "max_position_embeddings",
            "position_embedding_type",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
        ),
    ),
)
