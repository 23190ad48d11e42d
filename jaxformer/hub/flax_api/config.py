"""The configuration of a Flax class: the values of a config.json as attributes."""

from collections.abc import Mapping
from typing import Any

from jaxformer.errors import ArgumentError, shortened

_DEFAULTS = {
    "is_encoder_decoder": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict": True,
    "use_cache": True,
}
_SECTIONS = {"encoder", "decoder", "text_config", "vision_config"}


class FlaxConfig:
    """The values of a config.json, with the defaults of its model type, as attributes."""

    def __init__(self, **values: Any):
        """Takes the values."""
        self.__dict__.update(_DEFAULTS | values)
        for name in _SECTIONS & values.keys():
            setattr(self, name, as_config(values[name]))

    @property
    def num_labels(self) -> int:
        """The number of labels."""
        return len(self.__dict__.get("id2label") or (0, 1))

    @num_labels.setter
    def num_labels(self, number: int) -> None:
        self.id2label = {n: f"LABEL_{n}" for n in range(number)}
        self.label2id = {name: n for n, name in self.id2label.items()}

    def to_dict(self) -> dict[str, Any]:
        """Returns the values."""
        values = self.__dict__.items()
        return {name: x.to_dict() if hasattr(x, "to_dict") else x for name, x in values}

    def update(self, values: Mapping[str, Any]) -> None:
        """Sets some values."""
        for name, value in values.items():
            setattr(self, name, value)


def as_config(config: Any) -> Any:
    """Returns `config` if it has a `to_dict` method, or a FlaxConfig of a dictionary's values."""
    if isinstance(config, Mapping):
        return FlaxConfig(**config)
    if hasattr(config, "to_dict"):
        return config
    raise ArgumentError(
        f"config = {shortened(config)}: must be a configuration of transformers, or a dictionary "
        "with the values of a config.json"
    )


def options_of(options: Any) -> dict[str, Any]:
    """Converts options to a dictionary: from an object, a dictionary or None."""
    if isinstance(options, Mapping | None):
        return dict(options or {})
    return options.to_dict() if hasattr(options, "to_dict") else dict(vars(options))
