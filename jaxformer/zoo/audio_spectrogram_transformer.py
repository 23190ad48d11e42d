"""AST: a vision transformer over overlapping patches of a spectrogram."""

from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Activation, Computed, ConfigMap, NormEps, Number, numbers
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import SequenceClassificationTask, Task
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import PrefixPooler, SpectrogramPatchesConfig
from jaxformer.zoo.common.basics import BASE_SIZES, SIZES, sized
from jaxformer.zoo.common.vit_like import LAYOUTS, QKV_BIAS, module_names, names
from jaxformer.zoo.system import System


def ast(
    num_layers: int, model_dim: int, num_heads: int, **changes: Any
) -> SpectrogramPatchesConfig:
    """Returns AST's architecture in any size, for ten seconds and the 527 labels of AudioSet."""
    fields = {"pooler": PrefixPooler(norm=True)} | changes
    return sized(SpectrogramPatchesConfig, num_layers, model_dim, num_heads, **fields)


SYSTEMS = (
    System(
        "ast-base",
        ast(12, 768, 12),
        "87M",
        "Gong et al., 2021, section 2.2, https://arxiv.org/abs/2104.01778",
    ),
)

_SIZES = {
    "num_mel_bins": 128, "max_length": 1024, "frequency_stride": 10, "time_stride": 10
}  # fmt: skip


def _read_patches(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the sizes of spectrograms and patches, and the number of positions."""
    bins, frames, down, across = (hf_config.number(name, n) for name, n in _SIZES.items())
    size = hf_config.number("patch_size", 16)
    count = ((bins - size) // down + 1) * ((frames - size) // across + 1)
    return {
        "image_size": (bins, frames),
        "patch_size": (size, size),
        "patch_stride": (down, across),
        "position": Learned(2 + count),
    }


def _write_patches(config: SpectrogramPatchesConfig) -> dict[str, Any]:
    values = (*config.image_size, *config.patch_stride)
    return dict(zip(_SIZES, values, strict=True)) | {"patch_size": config.patch_size[0]}


_PREFIX = "audio_spectrogram_transformer"
_NAMES = names(_PREFIX) | {
    "pooler": "classifier.layernorm",
    "heads.label.output": "classifier.dense",
}

FORMATS = (
    ModelFormat(
        model_type="audio-spectrogram-transformer",
        config_map=ConfigMap(
            SpectrogramPatchesConfig,
            (
                *numbers(SIZES, BASE_SIZES),
                NormEps(default=1e-12),
                Activation(default="gelu"),
                Number("dropout", "hidden_dropout_prob", 0.0),
                Number("self_attention.dropout", "attention_probs_dropout_prob", 0.0),
                QKV_BIAS,
                Computed(_read_patches, _write_patches),
            ),
        ),
        weight_map=lambda _: WeightMap(_NAMES, layouts=LAYOUTS),
        architectures=(
            Architecture(
                "ASTForAudioClassification",
                SequenceClassificationTask(),
                {"pooler": PrefixPooler(norm=True)},
            ),
            Architecture("ASTModel", Task()),
        ),
        prefix=f"{_PREFIX}.",
        aliases=module_names(f"{_PREFIX}."),
    ),
)
