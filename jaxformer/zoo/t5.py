"""T5, T5 v1.1, mT5, UMT5 and ByT5."""

from typing import Any

from jaxformer.hub.fields import Computed
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import EncoderDecoderConfig
from jaxformer.zoo.common.t5_like import (
    T5_SCALE,
    architectures,
    config_map,
    read_scale,
    t5,
    t5_format,
    t5_v1_1,
)
from jaxformer.zoo.system import System


def mt5(num_layers: int, model_dim: int, num_heads: int, mlp_dim: int) -> EncoderDecoderConfig:
    """mT5 in any size: T5 v1.1 with a vocabulary for a hundred languages."""
    return t5_v1_1(num_layers, model_dim, num_heads, mlp_dim, vocab_size=250112)


def byt5(
    num_layers: int, num_decoder_layers: int, model_dim: int, num_heads: int, mlp_dim: int
) -> EncoderDecoderConfig:
    """ByT5 in any size: bytes, and an encoder three times as deep as the decoder."""
    return t5_v1_1(
        num_layers,
        model_dim,
        num_heads,
        mlp_dim,
        vocab_size=384,
        num_decoder_layers=num_decoder_layers,
    )


_T5 = "Raffel et al., 2020, section 3.7, https://arxiv.org/abs/1910.10683"
_V11 = "Shazeer, 2020, https://arxiv.org/abs/2002.05202; the released checkpoints"
_MT5 = "Xue et al., 2021, table 1, https://arxiv.org/abs/2010.11934"
_BYT5 = "Xue et al., 2022, table 1, https://arxiv.org/abs/2105.13626"

SYSTEMS = (
    System("t5-small", t5(6, 512, 8, 64, 2048), "60M", _T5, "t5.py:small"),
    System("t5-base", t5(12, 768, 12, 64, 3072), "220M", _T5, "t5.py:base"),
    System(
        "t5-large",
        t5(24, 1024, 16, 64, 4096),
        "770M",
        _T5,
        "t5.py:large",
        note="a separate output table",
    ),
    System("t5-3b", t5(24, 1024, 32, 128, 16384), "2.8B", _T5, "t5.py:3b"),
    System("t5-11b", t5(24, 1024, 128, 128, 65536), "11B", _T5, "t5.py:11b"),
    System("t5-v1.1-small", t5_v1_1(8, 512, 6, 1024), "77M", _V11, "t5_v1_1.py:small"),
    System("t5-v1.1-base", t5_v1_1(12, 768, 12, 2048), "250M", _V11, "t5_v1_1.py:base"),
    System("t5-v1.1-large", t5_v1_1(24, 1024, 16, 2816), "800M", _V11, "t5_v1_1.py:large"),
    System("t5-v1.1-xl", t5_v1_1(24, 2048, 32, 5120), "3B", _V11, "t5_v1_1.py:xl"),
    System("t5-v1.1-xxl", t5_v1_1(24, 4096, 64, 10240), "11B", _V11, "t5_v1_1.py:xxl"),
    System("mt5-small", mt5(8, 512, 6, 1024), "300M", _MT5, "mt5.py:small"),
    System("mt5-base", mt5(12, 768, 12, 2048), "580M", _MT5, "mt5.py:base"),
    System("mt5-large", mt5(24, 1024, 16, 2816), "1.2B", _MT5, "mt5.py:large"),
    System("mt5-xl", mt5(24, 2048, 32, 5120), "3.7B", _MT5, "mt5.py:xl"),
    System("mt5-xxl", mt5(24, 4096, 64, 10240), "13B", _MT5, "mt5.py:xxl"),
    System("byt5-small", byt5(12, 4, 1472, 6, 3584), "300M", _BYT5, "byt5.py:small"),
    System("byt5-base", byt5(18, 6, 1536, 12, 3968), "582M", _BYT5, "byt5.py:base"),
    System("byt5-large", byt5(36, 12, 1536, 16, 3840), "1.23B", _BYT5, "byt5.py:large"),
    System("byt5-xl", byt5(36, 12, 2560, 32, 6720), "3.74B", _BYT5, "byt5.py:xl"),
    System("byt5-xxl", byt5(36, 12, 4672, 64, 12352), "12.9B", _BYT5, "byt5.py:xxl"),
)


def _read_no_scale(hf_config: HFConfig) -> dict[str, Any]:
    """MT5 never scales the states, regardless of config.json."""
    return read_scale(hf_config) | {"logits.scale": 1.0}


_NEWER = {
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
}

FORMATS = (
    t5_format("t5", config_map(T5_SCALE), architectures("T5")),
    t5_format("mt5", config_map(Computed(_read_no_scale)), architectures("MT5"), defaults=_NEWER),
    t5_format(
        "umt5",
        config_map(T5_SCALE, shared=False),
        architectures("UMT5"),
        defaults=_NEWER,
    ),
)
