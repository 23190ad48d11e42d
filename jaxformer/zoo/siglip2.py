"""SigLIP 2 with images of any shape (NaFlex); models with one fixed shape have SigLIP's format."""

import math
from dataclasses import replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.positions.patch_table import Learned2D
from jaxformer.hub.fields import Computed, ConfigMap
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture
from jaxformer.hub.tasks.classes import LastTokenTask, Task
from jaxformer.hub.weights.layouts import OutIn
from jaxformer.models import VisionConfig
from jaxformer.zoo.common.clip_like import vision_fields
from jaxformer.zoo.siglip import (
    IMAGE_FORMAT,
    IMAGE_WEIGHT_MAP,
    SWITCH,
    TEXT_FORMAT,
    siglip,
    siglip_text,
    siglip_vision,
    whole,
)
from jaxformer.zoo.system import System

_VOCABULARY = 256_000
"""The size of Gemma's vocabulary."""


def siglip2_vision(
    num_layers: int, model_dim: int, num_heads: int, patch: int, **changes
) -> VisionConfig:
    """The vision tower in any size, with a table of positions for 16 x 16 patches."""
    grid = changes.pop("grid", (16, 16))
    fields = {
        "image_size": (patch * grid[0], patch * grid[1]),
        "position": Learned2D(grid),
    }
    return siglip_vision(num_layers, model_dim, num_heads, patch, **(fields | changes))


_SOURCE = "Tschannen et al., 2025, https://arxiv.org/abs/2502.14786"
_NOTE = "blocks and embeddings of the images alone"
_BASE = siglip2_vision(12, 768, 12, 16)
_SO400M = siglip2_vision(27, 1152, 16, 16, mlp_dim=4304)

SYSTEMS = (
    System(
        "siglip2-base-patch16-naflex",
        siglip(siglip_text(12, 768, 12, vocab_size=_VOCABULARY), _BASE),
        "86M",
        _SOURCE,
        note=_NOTE,
    ),
    System(
        "siglip2-so400m-patch16-naflex",
        siglip(siglip_text(27, 1152, 16, mlp_dim=4304, vocab_size=_VOCABULARY), _SO400M),
        "400M",
        _SOURCE,
        note=_NOTE,
    ),
    System("siglip2-base-patch16-naflex-vision", _BASE, "86M", _SOURCE, note=_NOTE),
)


def _read_patches(hf_config: HFConfig) -> dict[str, Any]:
    patch = hf_config.number("patch_size")
    count = hf_config.number("num_patches")
    side = math.isqrt(max(count, 0))
    if side < 1 or side * side != count:
        raise ConfigError(
            f"{hf_config.path}: num_patches = {count}: must be a square number, the rows of the "
            "table of positions"
        )
    return {"patch": patch, "grid": (side, side)}


def _write_patches(config: VisionConfig) -> dict[str, Any]:
    return {"num_patches": config.num_patches, "patch_size": config.patch_size[0]}


_PATCHES = Computed(_read_patches, _write_patches)
_LAYOUTS = IMAGE_WEIGHT_MAP.layouts | {"patch_projection.kernel": OutIn()}
_IMAGE_WEIGHT_MAP = replace(IMAGE_WEIGHT_MAP, layouts=_LAYOUTS)
_DEFAULTS = {name: x for name, x in IMAGE_FORMAT.defaults.items() if name != "image_size"}

_TEXT_FORMAT = replace(
    TEXT_FORMAT,
    model_type="siglip2_text_model",
    architectures=(Architecture("Siglip2TextModel", LastTokenTask(), prefix=""),),
)
_IMAGE_FORMAT = replace(
    IMAGE_FORMAT,
    model_type="siglip2_vision_model",
    config_map=ConfigMap(siglip2_vision, (*vision_fields(_PATCHES), SWITCH)),
    weight_map=lambda _: _IMAGE_WEIGHT_MAP,
    architectures=(Architecture("Siglip2VisionModel", Task()),),
    defaults=_DEFAULTS | {"num_patches": 256},
)
FORMATS = (
    whole("siglip2", "Siglip2", _TEXT_FORMAT, _IMAGE_FORMAT),
    _TEXT_FORMAT,
    _IMAGE_FORMAT,
)
