"""Describes the parts of a model in config.json for `modeling_jaxformer.py`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm, NoNorm, Norm, RMSNorm
from jaxformer.functional.positions.base import NoPosition, Position
from jaxformer.functional.positions.fixed_table import SinusoidalTable
from jaxformer.functional.positions.relative import t5_bucket
from jaxformer.functional.positions.schemes import (
    ALiBi,
    Binary,
    Integer,
    Learned,
    RoPE,
    Sinusoidal,
    T5Bias,
)
from jaxformer.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from jaxformer.models.heads.vocabulary import LanguageModel, MaskedLanguageModel
from jaxformer.models.model import ModelConfig
from jaxformer.nn.attention import DotProductAttention, DotProductCrossAttention
from jaxformer.nn.block import TransformerBlock
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.feedforward import MLP, mlp_settings
from jaxformer.nn.residual import (
    BranchNorm,
    Parallel,
    PostNorm,
    PreNorm,
    SandwichNorm,
    StreamNorm,
)

_RESIDUAL = ("output_scale", "layer_scale", "first_norm")
_TABLE = ("max_length", "offset", "after_norm")
_PARTS: Mapping[type, tuple[str, ...]] = {
    LayerNorm: ("eps", "bias", "scale"),
    RMSNorm: ("eps", "unit_offset"),
    NoNorm: ("eps",),
    NoPosition: (),
    Integer: ("max_length",),
    Binary: ("num_bits",),
    Sinusoidal: ("theta", "layout", "endpoint", "offset"),
    Learned: _TABLE,
    SinusoidalTable: _TABLE,
    RoPE: ("layout", "values"),
    ALiBi: ("factor", "rounded", "max_exponent"),
    T5Bias: ("num_buckets", "bidirectional", "shared"),
    PreNorm: (*_RESIDUAL, "final_norm"),
    PostNorm: _RESIDUAL,
    BranchNorm: _RESIDUAL,
    StreamNorm: _RESIDUAL,
    SandwichNorm: _RESIDUAL,
    Parallel: (*_RESIDUAL, "shared_norm"),
    DotProductAttention: (
        "bias", "key_bias", "output_bias", "scale", "scale_by_depth", "clip", "softcap",
        "query_key_norm", "query_key_norm_over",
    ),
    MLP: ("activation", "gated", "bias"),
}  # fmt: skip
"""The fields of each part that the modeling file reads."""
_IMPLIED = {
    Learned: ("learns",),
    SinusoidalTable: ("learns",),
    RoPE: ("theta", "fraction", "scaling", "max_length"),
    T5Bias: ("max_distance",),
    DotProductAttention: ("dropout",),
}
"""Fields without an effect on the outputs, or which determine other fields of config.json."""
_MODEL = frozenset({
    "num_layers", "model_dim", "num_heads", "mlp_dim", "num_kv_heads", "head_dim", "value_dim",
    "position", "window_position", "relative_position", "norm", "residual", "embeddings",
    "windows", "rope_layers", "layer_repeats", "vocab_size", "tie_embeddings", "logits",
    "self_attention", "feed_forward", "block", "heads", "pooler", "num_decoder_layers",
    "encoder_heads", "encoder_mlp_dim", "decoder_embedding_scale", "decoder_position",
    "share_embeddings", "cross_attention",
    # Computation and training.
    "dropout", "init_std", "depth_scaled_init", "compute_dtype", "attention", "scan_layers",
    "remat",
})  # fmt: skip
"""Fields of models that are in config.json, or without an effect on the outputs."""
_EMBEDDINGS = frozenset({"norm", "scale", "dropout", "token_types", "task_types", "padding_id"})
"""Fields of embeddings that are in config.json, or without an effect on the outputs."""


def described(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields of config.json that describe a model: stacks, head and pooler.

    Raises:
        ConfigError: The modeling file does not support a part of the model.
    """
    if type(config) not in (EncoderConfig, DecoderConfig, EncoderDecoderConfig):
        raise ConfigError(
            "--custom-code: must be a text encoder, a decoder or an encoder-decoder of texts; "
            f"modeling_jaxformer.py has no {type(config).__name__}"
        )
    _check_fields("model", config, _MODEL)
    _check_fields("model.embeddings", config.embeddings, _EMBEDDINGS)
    if type(config.block) is not TransformerBlock:
        raise _unsupported("model.block", config.block)
    fields = {"vocab_size": config.vocab_size, "head": _head(config)}
    if isinstance(config, EncoderDecoderConfig):
        fields["share_embeddings"] = config.share_embeddings
        fields["encoder_stack"] = _stack(config.encoder, config.position, "position")
        decoder = _stack(config.decoder, config.decoder_position, "decoder_position")
        own = {
            "causal": True,
            "source_dim": config.encoder_width,
            "cross_attention": _cross(config),
        }
        return fields | {"decoder_stack": decoder | own}
    stack = _stack(config, config.position, "position") | {"type_sizes": config.type_sizes}
    if isinstance(config, DecoderConfig):
        if config.cross_attention is not None:
            raise _unsupported("model.cross_attention", config.cross_attention)
        return fields | {"decoder_stack": stack | {"causal": True}}
    return fields | {"encoder_stack": stack, "pooler": config.pooler}


def _stack(config: TransformerConfig, position: Position, name: str) -> dict[str, Any]:
    relative = config.relative_position
    width = config.head_width
    schemes = {True: position, False: NoPosition()}
    layers = []
    for window, rotates in config.layer_kinds:
        scheme = schemes[rotates]
        if rotates and window is not None and config.window_position is not None:
            scheme = config.window_position
        described_scheme = _position(f"model.{name}", scheme, width)
        layers.append(
            {"window": window, "ahead": config.windows_ahead, "position": described_scheme}
        )
    count = config.num_layers // config.layer_repeats
    norm, residual = config.norm, config.residual
    embeddings = config.embeddings
    return {
        "model_dim": config.model_dim,
        "num_heads": config.num_heads,
        "kv_heads": config.kv_heads,
        "head_dim": width,
        "value_dim": config.value_width,
        "mlp_dim": config.mlp_dim,
        "causal": False,
        "type_sizes": {},
        "position": _position(f"model.{name}", position, width),
        "relative_position": relative and _position("model.relative_position", relative, width),
        "norm": _part("model.norm", norm),
        "embedding_norm": embeddings.norm and _part("model.embeddings.norm", embeddings.norm),
        "embedding_scale": embeddings.scale,
        "residual": _part("model.residual", residual),
        "final_norm": residual.final_norm,
        "self_attention": _part("model.self_attention", config.self_attention),
        "cross_attention": None,
        "feed_forward": _part("model.feed_forward", config.feed_forward),
        "group": len(layers),
        "repeats": config.layer_repeats,
        "layers": layers * (count // len(layers)),
    }


def _position(where: str, scheme: Position, head_dim: int) -> dict[str, Any]:
    found = _part(where, scheme)
    if isinstance(scheme, SinusoidalTable):
        return found | {"type": "Learned"}
    if isinstance(scheme, RoPE):
        lengths = jnp.arange(2)
        if scheme.changes_at(lengths) is not None:
            raise _unsupported(f"{where}.scaling", scheme.scaling)
        count = scheme.rotary_dim(head_dim)
        frequencies, factor = scheme.scaling.frequencies(scheme.theta, count, 0)
        listed = np.asarray(frequencies).reshape(-1).tolist()
        return found | {"frequencies": listed, "attention_factor": float(factor)}
    if isinstance(scheme, T5Bias):
        distances = np.arange(scheme.max_distance + 1)
        buckets = t5_bucket(
            jnp.asarray(-distances),
            bidirectional=scheme.bidirectional,
            num_buckets=scheme.num_buckets,
            max_distance=scheme.max_distance,
        )
        one_way = scheme.num_buckets // 2 if scheme.bidirectional else scheme.num_buckets
        starts = np.searchsorted(np.asarray(buckets), np.arange(1, one_way))
        return found | {"bucket_starts": starts.tolist()}
    return found


def _cross(config: EncoderDecoderConfig) -> dict[str, Any]:
    cross = config.cross_attention
    if type(cross) is not DotProductCrossAttention:
        raise _unsupported("model.cross_attention", cross)
    return _part("model.cross_attention.settings", cross.settings or config.self_attention)


def _head(config: ModelConfig) -> dict[str, Any] | None:
    if not config.heads:
        return None
    (head, *others) = config.heads
    if others or type(head) not in (LanguageModel, MaskedLanguageModel):
        raise _unsupported("model.heads", config.heads)
    masked = isinstance(head, MaskedLanguageModel)
    allowed = frozenset(("activation", "dense_bias", "dense") if masked else ())
    _check_fields("model.heads[0]", head, allowed)
    dense = None
    if masked and head.dense:
        dense = {
            "activation": head.activation or mlp_settings(config).activation,
            "bias": head.dense_bias,
            "norm": _part("model.norm", config.norm),
        }
    return {
        "tied": config.tie_embeddings,
        "bias": config.logits.bias,
        "scale": config.logits.scale,
        "softcap": config.logits.softcap,
        "dense": dense,
    }


def _part(where: str, part: Any) -> dict[str, Any]:
    """Returns a part as JSON, with its class name."""
    if type(part) not in _PARTS:
        raise _unsupported(where, part)
    names = _PARTS[type(part)]
    _check_fields(where, part, frozenset(names + _IMPLIED.get(type(part), ())))
    values = {}
    for name in names:
        value = getattr(part, name)
        if isinstance(value, Norm):
            value = _part(f"{where}.{name}", value)
        if dataclasses.is_dataclass(value):
            raise _unsupported(f"{where}.{name}", value)
        values[name] = value
    return {"type": type(part).__name__, **values}


def _check_fields(where: str, part: Any, read: frozenset[str]) -> None:
    """Refuses a field that the modeling file does not read, unless it has its default value."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name not in read and value != field.default:
            raise _unsupported(f"{where}.{field.name}", value)


def _unsupported(where: str, part: Any) -> ConfigError:
    return ConfigError(f"--custom-code: modeling_jaxformer.py has no {where} = {part!r}")
