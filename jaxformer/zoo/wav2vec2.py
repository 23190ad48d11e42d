"""wav2vec 2.0, and XLSR and XLS-R, its multilingual models."""

from functools import partial
from typing import Any

from jaxformer.hub.fields import Computed, ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.tasks.speech import QuantizedFramesTask
from jaxformer.models import QuantizedFrames, WaveformConfig
from jaxformer.nn.waveform import LengthAdapter
from jaxformer.zoo.common.wav2vec2_like import (
    ALIASES,
    FIELDS,
    HARMLESS,
    architectures,
    read_flag,
    waveform,
    weight_map,
)
from jaxformer.zoo.system import System

_SOURCE = "Baevski et al., 2020, section 4.2, https://arxiv.org/abs/2006.11477"
_XLS_R = "Babu et al., 2021, table 2, https://arxiv.org/abs/2111.09296"


def _pre_trained(num_layers: int, model_dim: int, width: int) -> WaveformConfig:
    """A large model with the head of pre-training, whose vectors have this width."""
    head = QuantizedFrames(code_dim=width, width=width)
    return waveform(num_layers, model_dim, 16, 4 * model_dim, stable=True, heads=(head,))


SYSTEMS = (
    System(
        "wav2vec2-base",
        waveform(12, 768, 12, 3072, heads=(QuantizedFrames(),)),
        "95M",
        _SOURCE,
        "wav2vec2.py:base",
    ),
    System("wav2vec2-large", _pre_trained(24, 1024, 768), "317M", _SOURCE, "wav2vec2.py:large"),
    System("xls-r-0.3b", _pre_trained(24, 1024, 768), "317M", _XLS_R),
    System("xls-r-1b", _pre_trained(48, 1280, 1024), "965M", _XLS_R),
    System("xls-r-2b", _pre_trained(48, 1920, 1024), "2162M", _XLS_R),
)


def _read_adapter(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the convolutions after the blocks."""
    if not read_flag(hf_config, "add_adapter", False):
        return {}
    width = hf_config.number("output_hidden_size", None)
    adapter = LengthAdapter(
        num_layers=hf_config.number("num_adapter_layers", 3),
        kernel_size=hf_config.number("adapter_kernel_size", 3),
        stride=hf_config.number("adapter_stride", 2),
        width=None if width == hf_config.number("hidden_size", 768) else width,
    )
    return {"adapter": adapter}


def _write_adapter(config: WaveformConfig) -> dict[str, Any]:
    adapter = config.adapter
    if adapter is None:
        return {"add_adapter": False}
    return {
        "add_adapter": True,
        "num_adapter_layers": adapter.num_layers,
        "adapter_kernel_size": adapter.kernel_size,
        "adapter_stride": adapter.stride,
        "output_hidden_size": config.output_width,
    }


_FIELDS = (*FIELDS, Computed(_read_adapter, _write_adapter))


def _vector(hf_config: HFConfig, architecture: str) -> dict[str, tuple[int, ...]]:
    """The vector for masked frames, which Flax's classes always have."""
    config = ConfigMap(WaveformConfig, _FIELDS).read(hf_config)
    if config.span_masking.has_vector:
        return {}
    prefix = "" if architecture == "Wav2Vec2Model" else "wav2vec2."
    return {f"{prefix}masked_spec_embed": (config.model_dim,)}


FORMATS = (
    ModelFormat(
        model_type="wav2vec2",
        config_map=ConfigMap(WaveformConfig, _FIELDS),
        weight_map=partial(weight_map, "wav2vec2"),
        architectures=architectures("Wav2Vec2", {"ForPreTraining": QuantizedFramesTask()}),
        prefix="wav2vec2.",
        aliases=ALIASES,
        harmless=(
            *HARMLESS,
            "adapter_kernel_size",
            "adapter_stride",
            "num_adapter_layers",
            "output_hidden_size",
            "codevector_dim",
            "contrastive_logits_temperature",
            "diversity_loss_weight",
            "feat_quantizer_dropout",
            "num_codevector*",
            "num_negatives",
            "proj_codevector_dim",
            "tdnn_*",
            "xvector_output_dim",
        ),
        returns_features=True,
        flax=FlaxFormat(unused=_vector),
    ),
)
