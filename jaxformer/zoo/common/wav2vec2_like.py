"""Shared parts of wav2vec 2.0 and HuBERT."""

from collections.abc import Mapping
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm
from jaxformer.hub.fields import (
    Activation,
    Computed,
    Expect,
    Flag,
    Number,
    numbers,
    read_activation,
    write_activation,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks.classes import Task
from jaxformer.hub.tasks.speech import ClipClassificationTask, CTCTask, QuantizedFramesTask
from jaxformer.hub.weights.layouts import Codebooks, Convolution, Same
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import CTC, Classification, QuantizedFrames, WaveformConfig
from jaxformer.models.model import ModelConfig
from jaxformer.nn import Embeddings, PostNorm, PreNorm
from jaxformer.nn.waveform import ConvolutionalFeatures, PositionalConvolution, SpanMasking
from jaxformer.zoo.common.basics import BASE_SIZES, SIZES, of_head, projections, sized

_LARGE = {
    "features": ConvolutionalFeatures(bias=True, norm="each"),
    "residual": PreNorm(),
    "embeddings": Embeddings(),
}
"""The fields of large models, which differ from those of base models."""


def waveform(
    num_layers: int,
    model_dim: int,
    num_heads: int,
    mlp_dim: int,
    *,
    stable: bool = False,
    **changes: Any,
) -> WaveformConfig:
    """Returns the architecture in any size, with a transcript over 32 characters.

    `stable`: norms come before the sublayers, as in large models.
    """
    fields = (_LARGE if stable else {}) | changes
    return sized(WaveformConfig, num_layers, model_dim, num_heads, mlp_dim, **fields)


_CONVOLUTIONS = {
    "channels": ("conv_dim", (512,) * 7),
    "kernels": ("conv_kernel", (10, 3, 3, 3, 3, 2, 2)),
    "strides": ("conv_stride", (5, 2, 2, 2, 2, 2, 2)),
}
_NORMS = {"group": "first", "layer": "each"}
_SPANS = {
    "time_probability": ("mask_time_prob", 0.05),
    "time_span": ("mask_time_length", 10),
    "min_time_spans": ("mask_time_min_masks", 2),
    "channel_probability": ("mask_feature_prob", 0.0),
    "channel_span": ("mask_feature_length", 10),
    "min_channel_spans": ("mask_feature_min_masks", 0),
}


def _sizes(hf_config: HFConfig, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of a list in config.json."""
    sizes = hf_config.take(name, default)
    if not isinstance(sizes, list | tuple) or any(type(size) is not int for size in sizes):
        raise ConfigError(f"{hf_config.path}: {name} = {sizes!r}: must be a list of whole numbers")
    return tuple(sizes)


def read_flag(hf_config: HFConfig, name: str, default: bool) -> bool:
    """Returns a field that is true or false."""
    return Flag("", name, default).read(hf_config)[""]


def _read_convolutions(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the convolutions of samples and the positional one, which have one activation."""
    f = read_activation(hf_config, "feat_extract_activation", "gelu")
    sizes = {
        ours: _sizes(hf_config, theirs, default)
        for ours, (theirs, default) in _CONVOLUTIONS.items()
    }
    norm = hf_config.choose("feat_extract_norm", _NORMS, "group")
    bias = read_flag(hf_config, "conv_bias", False)
    positions = PositionalConvolution(
        kernel_size=hf_config.number("num_conv_pos_embeddings", 128),
        groups=hf_config.number("num_conv_pos_embedding_groups", 16),
        activation=f,
    )
    return {
        "features": ConvolutionalFeatures(**sizes, bias=bias, norm=norm, activation=f),
        "position_convolution": positions,
    }


def _write_convolutions(config: WaveformConfig) -> dict[str, Any]:
    features, positions = config.features, config.position_convolution
    if positions.activation != features.activation:
        raise ConfigError(
            f"model.position_convolution.activation = {positions.activation!r}: must be that of "
            f"model.features, {features.activation!r}"
        )
    norms = {ours: theirs for theirs, ours in _NORMS.items()}
    return {
        **{theirs: list(getattr(features, ours)) for ours, (theirs, _) in _CONVOLUTIONS.items()},
        "num_feat_extract_layers": len(features.channels),
        "feat_extract_norm": norms[features.norm],
        "feat_extract_activation": write_activation(features.activation),
        "conv_bias": features.bias,
        "num_conv_pos_embeddings": positions.kernel_size,
        "num_conv_pos_embedding_groups": positions.groups,
    }


def _read_norms(hf_config: HFConfig) -> dict[str, Any]:
    """Reads where the norms are, and their epsilon."""
    norm = LayerNorm(eps=hf_config.number("layer_norm_eps", 1e-5))
    stable = read_flag(hf_config, "do_stable_layer_norm", False)
    residual = PreNorm() if stable else PostNorm()
    return {"norm": norm, "residual": residual, "embeddings.norm": None if stable else norm}


def _write_norms(config: WaveformConfig) -> dict[str, Any]:
    return {
        "layer_norm_eps": config.norm.eps,
        "do_stable_layer_norm": config.residual == PreNorm(),
    }


def _read_spans(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the masking of training."""
    values = {ours: hf_config.number(theirs, default) for ours, (theirs, default) in _SPANS.items()}
    rates = {name: float(values[name]) for name in values if name.endswith("probability")}
    enabled = read_flag(hf_config, "apply_spec_augment", True)
    return {"span_masking": SpanMasking(**(values | rates), enabled=enabled)}


def _write_spans(config: WaveformConfig) -> dict[str, Any]:
    own = config.span_masking
    values = {theirs: getattr(own, ours) for ours, (theirs, _) in _SPANS.items()}
    return values | {"apply_spec_augment": own.enabled}


def write_classifier(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of config.json that only the classifier of clips reads."""
    heads = [head for head in config.heads if isinstance(head, Classification) and head.dense]
    if not heads:
        return {}
    return {
        "classifier_proj_size": heads[-1].dense.output_width(config.model_dim),
        "use_weighted_layer_sum": heads[-1].mixes_layers,
    }


FIELDS = (
    *numbers(SIZES, BASE_SIZES),
    Activation(default="gelu"),
    Number("dropout", "hidden_dropout", 0.1),
    Number("self_attention.dropout", "attention_dropout", 0.1),
    Number("feature_dropout", "feat_proj_dropout", 0.0),
    Computed(_read_convolutions, _write_convolutions),
    Computed(_read_norms, _write_norms),
    Computed(_read_spans, _write_spans),
    of_head(CTC, CTCTask.FIELDS),
    of_head(QuantizedFrames, QuantizedFramesTask.FIELDS),
    Computed(lambda hf_config: {}, write_classifier),
    Expect("adapter_attn_dim", None),
)
"""The fields of config.json that both have."""

HARMLESS = (
    "activation_dropout",
    "final_dropout",
    "layerdrop",
    "num_feat_extract_layers",
    "vocab_size",
    "classifier_proj_size",
    "use_weighted_layer_sum",
    "ctc_*",
)
"""Fields of config.json that only heads read, or that change nothing but training."""

ALIASES = {
    r"\.weight_g$": ".parametrizations.weight.original0",
    r"\.weight_v$": ".parametrizations.weight.original1",
}
"""The names of the weight norm's tensors in files of older versions of PyTorch."""

_BLOCK = {
    **projections("attention"),
    "norms.0": "layer_norm",
    "sublayers.1.up": "feed_forward.intermediate_dense",
    "sublayers.1.down": "feed_forward.output_dense",
    "norms.1": "final_layer_norm",
}
_LAYOUTS = {
    "feature_encoder.convolutions.*.kernel": Convolution(),
    "adapter.convolutions.*.kernel": Convolution(),
    "frame_positions.direction": Convolution(),
    "frame_positions.magnitude": Same(leading=2),
    "heads.quantized_frames.quantizer.codebooks": Codebooks(),
}


def weight_map(name: str, config: WaveformConfig) -> WeightMap:
    """Returns the names of the tensors of a model whose body is called `name`."""
    layer = f"{name}.feature_extractor.conv_layers"
    positions = f"{name}.encoder.pos_conv_embed.conv"
    names: dict[str, str] = {
        "feature_encoder.channel_norm": f"{layer}.0.layer_norm",
        "feature_norm": f"{name}.feature_projection.layer_norm",
        "projection": f"{name}.feature_projection.projection",
        "mask_vector": f"{name}.masked_spec_embed",
        "frame_positions.magnitude": f"{positions}.parametrizations.weight.original0",
        "frame_positions.direction": f"{positions}.parametrizations.weight.original1",
        "frame_positions.bias": f"{positions}.bias",
        "transformer.inputs.embedding_norm": f"{name}.encoder.layer_norm",
        **block("transformer", f"{name}.encoder.layers.{{}}", _BLOCK),
        "transformer.final_norm": f"{name}.encoder.layer_norm",
        "adapter.projection": f"{name}.adapter.proj",
        "adapter.norm": f"{name}.adapter.proj_layer_norm",
        "heads.ctc.output": "lm_head",
        "heads.label.dense.linear": "projector",
        "heads.label.output": "classifier",
        "heads.label.layer_weights": "layer_weights",
        "heads.quantized_frames.quantizer.scores": "quantizer.weight_proj",
        "heads.quantized_frames.quantizer.codebooks": "quantizer.codevectors",
        "heads.quantized_frames.states": "project_hid",
        "heads.quantized_frames.quantized": "project_q",
    }
    for place in range(len(config.features.channels)):
        names[f"feature_encoder.convolutions.{place}"] = f"{layer}.{place}.conv"
        names[f"feature_encoder.norms.{place}"] = f"{layer}.{place}.layer_norm"
    for place in range(0 if config.adapter is None else config.adapter.num_layers):
        names[f"adapter.convolutions.{place}"] = f"{name}.adapter.layers.{place}.conv"
    return WeightMap(names, layouts=_LAYOUTS)


def architectures(name: str, others: Mapping[str, Task] | None = None) -> tuple[Architecture, ...]:
    """Returns the classes of a system, with `others` between those with heads and the bare one."""
    tasks = {
        "ForCTC": CTCTask(),
        "ForSequenceClassification": ClipClassificationTask(),
        **(others or {}),
        "Model": Task(),
    }
    return tuple(Architecture(f"{name}{suffix}", task) for suffix, task in tasks.items())
