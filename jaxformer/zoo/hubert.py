"""HuBERT, which differs from wav2vec 2.0 in its training targets: units of a clustering."""

from functools import partial

from jaxformer.hub.fields import ConfigMap, Expect, Flag
from jaxformer.hub.model_format import ModelFormat
from jaxformer.models import WaveformConfig
from jaxformer.zoo.common.wav2vec2_like import (
    ALIASES,
    FIELDS,
    HARMLESS,
    architectures,
    waveform,
    weight_map,
)
from jaxformer.zoo.system import System

_SOURCE = "Hsu et al., 2021, table 1, https://arxiv.org/abs/2106.07447"

_NOTE = "with the head that predicts units"

SYSTEMS = (
    System("hubert-base", waveform(12, 768, 12, 3072), "95M", _SOURCE),
    System("hubert-large", waveform(24, 1024, 16, 4096, stable=True), "317M", _SOURCE, note=_NOTE),
    System("hubert-xlarge", waveform(48, 1280, 16, 5120, stable=True), "964M", _SOURCE, note=_NOTE),
)

_FIELDS = (
    *FIELDS,
    Flag("feature_norm", "feat_proj_layer_norm", True),
    Expect("conv_pos_batch_norm", False),
    Expect("add_adapter", False),
)

FORMATS = (
    ModelFormat(
        model_type="hubert",
        config_map=ConfigMap(WaveformConfig, _FIELDS),
        weight_map=partial(weight_map, "hubert"),
        architectures=architectures("Hubert"),
        prefix="hubert.",
        aliases=ALIASES,
        harmless=HARMLESS,
    ),
)
