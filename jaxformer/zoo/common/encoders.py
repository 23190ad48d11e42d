"""Models of one family that are described as a part or a variant of another."""

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

from jaxformer.hub.parts import PartsMap
from jaxformer.nn.config import TextConfig


def of_family(kind: type[TextConfig], config: TextConfig, **changes: Any) -> Any:
    """Returns the model of type `kind` with the layers of another text model, without heads."""
    names = {each.name for each in fields(kind)} & {each.name for each in fields(config)}
    shared = {name: getattr(config, name) for name in names}
    return kind(**(shared | changes | {"heads": ()}))


@dataclass(frozen=True)
class PartAlone(PartsMap):
    """The map of a model that is one part of another system, in its section of config.json."""

    def write(self, config):
        (name,) = self.parts
        return super().write(SimpleNamespace(**{name: config}))
