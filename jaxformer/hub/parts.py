"""Models of several parts: their config.json and tensors, composed of those of the parts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import ModelFormat, Part, completed, read_config
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models.model import ModelConfig


@dataclass(frozen=True)
class PartsMap(ConfigMap):
    """The map of a model of several parts; `fields` are those of the whole."""

    parts: Mapping[str, Part] = field(default_factory=dict)
    """The parts by our fields."""

    def read(self, hf_config: HFConfig) -> ModelConfig:
        """Returns our configuration, without the heads of the whole.

        Args:
            hf_config: The values of a config.json.

        Raises:
            ConfigError: A field is missing or has a value that is not supported.
        """
        values: dict[str, Any] = {}
        for name, part in self.parts.items():
            section = completed(part.section_of(hf_config), part.model_format)
            values[name] = read_config(section, part.model_format, part.architecture)
        for each in self.fields:
            values |= each.read(hf_config)
        return self.build(**values)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Returns the fields of config.json, with a section for each part."""
        values = super().write(config)
        for name, part in self.parts.items():
            own = getattr(config, name)
            padding_id = getattr(own, "padding_id", None)
            values[part.section] = {
                "model_type": part.model_format.model_type,
                **({} if padding_id is None else {"pad_token_id": padding_id}),
                **part.model_format.config_map.write(own),
            }
        return values


def with_parts(model_format: ModelFormat, parts: Mapping[str, Part], own: WeightMap) -> ModelFormat:
    """Returns a format whose files are composed of those of its parts.

    Args:
        model_format: The format, with the fields of the whole.
        parts: The parts by our fields.
        own: The names of the tensors of the whole.
    """
    aliases = {
        # Older files repeat the prefix that a part has in files of its own.
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
        parts=parts,
    )


def _weight_map(config: ModelConfig, parts: Mapping[str, Part], own: WeightMap) -> WeightMap:
    names, fused, layouts = dict(own.names), list(own.fused), dict(own.layouts)
    for name, part in parts.items():
        inner = part.model_format.weight_map(getattr(config, name))
        names |= {f"{name}.{ours}": _renamed(x, part) for ours, x in inner.names.items()}
        if part.projection:
            names[f"{name}.heads.projection.output"] = part.projection
        fused += [
            each._replace(
                modules=tuple(f"{name}.{module}" for module in each.modules),
                tensor=_renamed(each.tensor, part),
            )
            for each in inner.fused
        ]
        layouts |= {f"{name}.{pattern}": layout for pattern, layout in inner.layouts.items()}
    return WeightMap(names, tuple(fused), layouts)


def _renamed(tensor: str, part: Part) -> str:
    """The name of a part's tensor in files of the whole; those of heads keep theirs."""
    bare = tensor.removeprefix(part.model_format.prefix)
    is_body = bare != tensor or not part.model_format.prefix
    return part.prefix + bare if is_body else tensor
