"""ModernBERT: an encoder with RoPE, windows, GeGLU and norms before the sublayers."""

from dataclasses import dataclass
from typing import Any

from jaxformer.functional.norms import LayerNorm
from jaxformer.hub.activations import read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.rope import read_layer_ropes, write_layer_ropes
from jaxformer.hub.tasks import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
    num_labels,
)
from jaxformer.hub.weights.layouts import Concatenated
from jaxformer.hub.weights.weight_map import Fused, WeightMap, block
from jaxformer.hub.windows import FULL, SLIDING, read_windows
from jaxformer.models import (
    Classification,
    Dense,
    EncoderConfig,
    MaskedLanguageModel,
    Span,
    TokenClassification,
)
from jaxformer.nn import PreNorm

_THETAS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}


def read_modernbert(hf_config: HFConfig) -> EncoderConfig:
    """The architecture that a config.json describes."""
    layers = hf_config.number("num_hidden_layers", 22)
    every = hf_config.number("global_attn_every_n_layers", 3)
    # Half of it to either side of a token, which sees itself besides.
    window = hf_config.number("local_attention", 128) // 2 + 1
    kinds = [SLIDING if layer % every else FULL for layer in range(layers)]
    pattern = read_windows(hf_config, kinds, window)
    windows = pattern * (layers // len(pattern))
    bases = {FULL: (_THETAS[FULL], 160_000.0), SLIDING: (_THETAS[SLIDING], 10_000.0)}
    ropes = read_layer_ropes(hf_config, bases, scaled=(FULL, SLIDING))
    bias = hf_config.take("attention_bias", False)
    norm = LayerNorm(hf_config.number("norm_eps", 1e-5), hf_config.take("norm_bias", False))
    return EncoderConfig(
        num_layers=layers,
        model_dim=hf_config.number("hidden_size", 768),
        num_heads=hf_config.number("num_attention_heads", 12),
        mlp_dim=hf_config.number("intermediate_size", 1152),
        vocab_size=hf_config.number("vocab_size", 50368),
        padding_id=hf_config.number("pad_token_id"),
        position=ropes[FULL],
        window_position=ropes[SLIDING] if any(windows) else None,
        windows=windows,
        first_norm=False,
        norm=norm,
        embedding_norm=norm,
        residual=PreNorm(),
        activation=read_activation(hf_config, "hidden_activation", "gelu"),
        gated=True,
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=hf_config.take("mlp_bias", False),
        head_bias=hf_config.take("decoder_bias", True),
        tie_embeddings=hf_config.take("tie_word_embeddings", True),
        dropout=hf_config.number("mlp_dropout", 0.0),
        embedding_dropout=hf_config.number("embedding_dropout", 0.0),
        attention_dropout=hf_config.number("attention_dropout", 0.0),
    )


def write_modernbert(config: EncoderConfig) -> dict[str, Any]:
    """And back."""
    sizes = [window for window in config.windows if window is not None]
    kinds = [FULL if window is None else SLIDING for window in config.windows]
    ropes = {FULL: config.position, SLIDING: config.window_position or config.position}
    return {
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.model_dim,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "vocab_size": config.vocab_size,
        "layer_types": kinds * (config.num_layers // len(kinds)),
        "local_attention": 2 * (sizes[0] - 1) if sizes else 128,
        **write_layer_ropes(ropes, _THETAS, scaled=FULL),
        "norm_eps": config.norm.eps,
        "norm_bias": config.norm.bias,
        "hidden_activation": write_activation(config.activation),
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "decoder_bias": config.head_bias,
        "tie_word_embeddings": config.tie_embeddings,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        **_write_head(config),
    }


def _write_head(config: EncoderConfig) -> dict[str, Any]:
    """What the file says of the layer that all heads have before their output."""
    values = {}
    for head in config.heads:
        if isinstance(head, MaskedLanguageModel):
            dense = Dense(head.activation or config.activation, head.dense_bias)
        else:
            dense = getattr(head, "dense", None)
        if isinstance(head, Classification):
            values["classifier_pooling"] = _POOLINGS.get(head.pooling, head.pooling)
        if dense is not None:
            values["classifier_activation"] = write_activation(dense.activation)
            values["classifier_bias"] = dense.bias
    return values


_POOLINGS = {"first": "cls", "mean": "mean"}


def _dense(hf_config: HFConfig) -> Dense:
    """What all heads have before their output."""
    bias = hf_config.take("classifier_bias", False)
    return Dense(read_activation(hf_config, "classifier_activation", "gelu"), bias=bias, norm=True)


@dataclass(frozen=True)
class _Words(MaskedLMTask):
    """`MaskedLMTask` with the settings of the dense layer."""

    def heads(self, hf_config):
        hf_config.expect("sparse_prediction", False)
        dense = _dense(hf_config)
        return (MaskedLanguageModel(activation=dense.activation, dense_bias=dense.bias),)


@dataclass(frozen=True)
class _Sequence(SequenceClassificationTask):
    """`SequenceClassificationTask` with these, and the state that the file names."""

    def heads(self, hf_config):
        theirs = {name: ours for ours, name in _POOLINGS.items()}
        pooling = hf_config.choose("classifier_pooling", theirs, "cls")
        labels, dense = num_labels(hf_config), _dense(hf_config)
        return (Classification(num_labels=labels, pooling=pooling, dense=dense),)


@dataclass(frozen=True)
class _Tags(TokenClassificationTask):
    """`TokenClassificationTask` with these."""

    def heads(self, hf_config):
        return (TokenClassification(num_labels=num_labels(hf_config), dense=_dense(hf_config)),)


@dataclass(frozen=True)
class _Answer(QuestionAnsweringTask):
    """`QuestionAnsweringTask` with these."""

    def heads(self, hf_config):
        return (Span(dense=_dense(hf_config)),)


_LABEL_HEADS = ("label", "tags", "span")
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
_LAYER = "transformer.stack.group.*.sublayers"
_QKV = tuple(f"{_LAYER}.0.attention.{part}" for part in ("query", "key", "value"))
_FUSED = (
    Fused(_QKV, "model.layers.{}.attn.Wqkv", Concatenated()),
    Fused((f"{_LAYER}.1.gate", f"{_LAYER}.1.up"), "model.layers.{}.mlp.Wi", Concatenated()),
)

FORMATS = (
    ModelFormat(
        model_type="modernbert",
        read=read_modernbert,
        write=write_modernbert,
        weight_map=lambda config: WeightMap(_NAMES, fused=_FUSED),
        architectures=(
            Architecture("ModernBertForMaskedLM", _Words()),
            Architecture("ModernBertForSequenceClassification", _Sequence()),
            Architecture("ModernBertForTokenClassification", _Tags()),
            Architecture("ModernBertForQuestionAnswering", _Answer()),
            Architecture("ModernBertModel", Task()),
        ),
        tiny={
            "vocab_size": 131,
            "hidden_size": 48,
            "intermediate_size": 56,
            "num_hidden_layers": 5,
            "num_attention_heads": 6,
            "local_attention": 6,
            "hidden_activation": "silu",
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "classifier_activation": "relu",
            "classifier_pooling": "mean",
            "pad_token_id": 3,
        },
        prefix="model.",
        defaults={"pad_token_id": 50283},
        harmless=(
            # The sequence classifier reads them; the other classes have no use for them.
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
