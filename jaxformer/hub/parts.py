"""Models of several parts, whose config.json and tensors are composed of those of the parts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jaxformer.hub.fields import ConfigMap, build_with, write_padding_id
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat, Section, completed, read_config
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models.model import ModelConfig


@dataclass(frozen=True)
class PartsMap(ConfigMap):
    """The config map of a model of several parts; `fields` are those outside of the parts."""

    parts: Mapping[str, Section] = field(default_factory=dict)
    """Field of our configuration -> the part."""

    def read(self, hf_config: HFConfig) -> ModelConfig:
        """Returns our configuration, without the heads of the whole model."""
        values: dict[str, Any] = {}
        for name, part in self.parts.items():
            section = completed(part.section_of(hf_config), part.model_format)
            values[name] = read_config(section, part.model_format, part.architecture)
        for each in self.fields:
            values |= each.read(hf_config)
        return build_with(self.build, values)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Returns the fields of config.json, with a section for each part."""
        sections = {}
        for name, part in self.parts.items():
            own = getattr(config, name)
            sections[part.section] = {
                "model_type": part.model_format.model_type,
                **write_padding_id(own),
                **part.model_format.config_map.write(own),
            }
        return super().write(config) | sections


def with_parts(
    model_format: ModelFormat, parts: Mapping[str, Section], own: WeightMap
) -> ModelFormat:
    """Returns a format whose files combine those of its parts with the tensors of `own`."""
    aliases = {
        # Older files repeat the prefix of a separately saved part.
        f"^{re.escape(part.prefix + part.model_format.prefix)}": part.prefix
        for part in parts.values()
        if part.model_format.prefix
    }
    buffers: list[str] = []
    copies: dict[str, str] = {}
    for part in parts.values():
        inner = part.model_format
        aliases |= inner.aliases
        buffers += inner.buffers
        copies |= {_renamed(a, part): _renamed(b, part) for a, b in inner.copies.items()}
    config_map = model_format.config_map
    return replace(
        model_format,
        config_map=PartsMap(config_map.build, config_map.fields, parts),
        weight_map=lambda config: _weight_map(config, parts, own),
        aliases=aliases,
        buffers=tuple(buffers),
        copies=copies,
        sections=parts,
    )


def _weight_map(config: ModelConfig, parts: Mapping[str, Section], own: WeightMap) -> WeightMap:
    for name, part in parts.items():
        inner = part.model_format.weight_map(getattr(config, name))
        own |= inner.within(name, partial(_renamed, part=part))
        if part.projection:
            own |= WeightMap({f"{name}.heads.projection.output": part.projection})
    return own


def _renamed(tensor: str, part: Section) -> str:
    """Returns the name of a part's tensor in files of the whole model; heads keep their names."""
    bare = tensor.removeprefix(part.model_format.prefix)
    is_body = bare != tensor or not part.model_format.prefix
    return part.prefix + bare if is_body else tensor
