"""LongT5: T5 v1.1 whose encoder attends to a window, and optionally to global tokens."""

from dataclasses import replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.positions.sparse import T5GlobalBias
from jaxformer.hub.fields import Computed
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks.classes import Seq2SeqLMTask, Task
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import EncoderConfig, EncoderDecoderConfig
from jaxformer.nn import TransientGlobalAttention
from jaxformer.zoo.common.t5_like import (
    T5_SCALE,
    config_map,
    encoder_path,
    t5_format,
    t5_v1_1,
    weight_names,
)
from jaxformer.zoo.system import System

_GLOBAL = {
    "self_attention": TransientGlobalAttention(block_size=16, scale=1.0),
    "position": T5GlobalBias(num_buckets=32, max_distance=128, bidirectional=True),
}


def long_t5(num_layers: int, model_dim: int, num_heads: int, mlp_dim: int, **changes: Any):
    """Returns LongT5 with local attention in any size; a token sees 127 others on either side."""
    return t5_v1_1(num_layers, model_dim, num_heads, mlp_dim, **({"windows": (128,)} | changes))


_SOURCE = (
    "https://github.com/google-research/longt5; Guo et al., 2022, https://arxiv.org/abs/2112.07916"
)
_BASE = (12, 768, 12, 2048)
_LARGE = (24, 1024, 16, 2816)
_XL = (24, 2048, 32, 5120)

SYSTEMS = (
    System("long-t5-local-base", long_t5(*_BASE), "250M", _SOURCE),
    System("long-t5-local-large", long_t5(*_LARGE), "780M", _SOURCE),
    System("long-t5-tglobal-base", long_t5(*_BASE, **_GLOBAL), "250M", _SOURCE),
    System("long-t5-tglobal-large", long_t5(*_LARGE, **_GLOBAL), "780M", _SOURCE),
    System("long-t5-tglobal-xl", long_t5(*_XL, **_GLOBAL), "3B", _SOURCE),
)

_LOCAL, _TRANSIENT_GLOBAL = "local", "transient-global"


def _read_attention(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the encoder's window, and whether there are global tokens."""
    kind = hf_config.take("encoder_attention_type", _LOCAL)
    size = hf_config.number("global_block_size", 16)
    values = {"windows": (hf_config.number("local_radius", 127) + 1,)}
    if kind == _LOCAL:
        return values
    if kind != _TRANSIENT_GLOBAL:
        raise ConfigError(
            f"{hf_config.path}: encoder_attention_type = {kind!r}: must be {_LOCAL!r} or "
            f"{_TRANSIENT_GLOBAL!r}"
        )
    position = T5GlobalBias(
        hf_config.number("relative_attention_num_buckets", 32),
        hf_config.number("relative_attention_max_distance", 128),
        bidirectional=True,
    )
    attention = TransientGlobalAttention(size, scale=1.0)
    return values | {"self_attention": attention, "position": position}


def _write_attention(config: EncoderDecoderConfig | EncoderConfig) -> dict[str, Any]:
    attention = config.self_attention
    values = {"local_radius": (config.windows[0] or 1) - 1, "encoder_attention_type": _LOCAL}
    if isinstance(attention, TransientGlobalAttention):
        kind = {"encoder_attention_type": _TRANSIENT_GLOBAL}
        values |= kind | {"global_block_size": attention.block_size}
    return values


def _weight_map(config: EncoderDecoderConfig | EncoderConfig) -> WeightMap:
    if not isinstance(config.self_attention, TransientGlobalAttention):
        return weight_names(config, "LocalSelfAttention")
    named = weight_names(config, "TransientGlobalSelfAttention")
    ours = encoder_path(config)
    theirs = "transformer.encoder.block.{}"
    attention = "layer.0.TransientGlobalSelfAttention"
    table = f"{theirs.format(0)}.{attention}.global_relative_attention_bias.weight"
    norm = {"sublayers.0.global_norm": f"{attention}.global_input_layer_norm"}
    own = {f"{ours}.inputs.global_position_table": table, **block(ours, theirs, norm)}
    return replace(named, names=named.names | own)


FORMATS = (
    t5_format(
        "longt5",
        config_map(T5_SCALE, own=(Computed(_read_attention, _write_attention),)),
        (
            Architecture("LongT5ForConditionalGeneration", Seq2SeqLMTask(), prefix=""),
            Architecture("LongT5Model", Task()),
            Architecture("LongT5EncoderModel", Task()),
        ),
        _weight_map,
    ),
)
