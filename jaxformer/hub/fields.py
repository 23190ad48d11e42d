"""The map between config.json and our configuration: a table of fields for both directions."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm, Norm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.hf_config import REQUIRED, HFConfig
from jaxformer.io.components import value_at, with_values
from jaxformer.models.model import ModelConfig
from jaxformer.nn.attention import DotProductAttention
from jaxformer.nn.config import TextConfig


class Field(abc.ABC):
    """One or several fields of config.json, and the corresponding fields of our configuration."""

    @abc.abstractmethod
    def read(self, hf_config: HFConfig) -> dict[str, Any]:
        """Returns the fields of our configuration."""

    @abc.abstractmethod
    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Returns the fields of config.json."""


@dataclass(frozen=True)
class ConfigMap:
    """The map between a config.json and our configuration."""

    build: Callable[..., ModelConfig]
    """Makes our configuration from the fields."""
    fields: Sequence[Field]
    """The fields; if two read or write the same name, the later one wins."""

    def read(self, hf_config: HFConfig) -> ModelConfig:
        """Returns our configuration, without heads."""
        values: dict[str, Any] = {}
        for each in self.fields:
            values |= each.read(hf_config)
        return build_with(self.build, values)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Returns the fields of config.json.

        Values that config.json cannot express are lost; `describe` detects this by reading the
        result.
        """
        values: dict[str, Any] = {}
        for each in self.fields:
            values |= each.write(config)
        return values


def build_with(build: Callable[..., ModelConfig], values: Mapping[str, Any]) -> ModelConfig:
    """Builds a configuration from its fields and those of its components."""
    own = {name: value for name, value in values.items() if "." not in name}
    inner = {name: value for name, value in values.items() if "." in name}
    return with_values(build(**own), inner)


@dataclass(frozen=True)
class Value(Field):
    """A field that has the same value in both configurations."""

    ours: str
    """Our field, or the path to a field of a component, such as "self_attention.bias"."""
    theirs: str
    """The field of config.json."""
    default: Any = REQUIRED
    """The value if config.json lacks the field; `REQUIRED` for a required field."""
    also: tuple[str, ...] = ()
    """Further fields of ours with the same value."""

    def read(self, hf_config):
        return dict.fromkeys((self.ours, *self.also), self._decode(hf_config))

    def write(self, config):
        return {self.theirs: self._encode(config)}

    def _decode(self, hf_config: HFConfig) -> Any:
        return hf_config.take(self.theirs, self.default)

    def _encode(self, config: ModelConfig) -> Any:
        return value_at(config, self.ours)


class Number(Value):
    """A number; it may be null if `default` is None."""

    def _decode(self, hf_config):
        return hf_config.number(self.theirs, self.default)

    def _encode(self, config):
        return value_at(resolved(config), self.ours)


class Flag(Value):
    """True or false."""

    def _decode(self, hf_config):
        value = hf_config.take(self.theirs, self.default)
        if not isinstance(value, bool):
            raise ConfigError(f"{hf_config.path}: {self.theirs} = {value!r}: must be true or false")
        return value


@dataclass(frozen=True)
class Switch(Value):
    """A flag of config.json that selects one of two values of our field."""

    on: Any = True
    """Our value if the flag is true."""
    off: Any = False
    """Our value if the flag is false."""

    def _decode(self, hf_config):
        return self.on if hf_config.take(self.theirs, self.default) else self.off

    def _encode(self, config):
        return value_at(config, self.ours) != self.off


@dataclass(frozen=True)
class Activation(Value):
    """The name of an activation, which has several spellings in transformers."""

    ours: str = "feed_forward.activation"
    theirs: str = "hidden_act"
    names: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    """The name in config.json -> ours."""

    def _decode(self, hf_config):
        return hf_config.choose(self.theirs, self.names, self.default)

    def _encode(self, config):
        return write_activation(value_at(config, self.ours), self.names)


@dataclass(frozen=True)
class NormEps(Value):
    """The epsilon of a norm."""

    ours: str = "norm"
    theirs: str = "layer_norm_eps"
    make: Callable[..., Norm] = LayerNorm
    """Makes the norm from its `eps`."""

    def _decode(self, hf_config):
        return self.make(eps=hf_config.number(self.theirs, self.default))

    def _encode(self, config):
        return value_at(config, self.ours).eps


@dataclass(frozen=True)
class LearnedPositions(Value):
    """The number of learned positions."""

    ours: str = "position"
    theirs: str = "max_position_embeddings"
    offset: int = 0
    """The row of position 0 in the table."""
    learns: bool = True
    """Whether they are trained; otherwise the file has a constant table."""

    def _decode(self, hf_config):
        length = hf_config.number(self.theirs, self.default)
        return Learned(length, offset=self.offset, learns=self.learns)

    def write(self, config):
        # Other schemes have no length; `describe` detects the difference by reading the result.
        length = value_at(config, self.ours).max_length
        return {} if length is None else {self.theirs: length}


@dataclass(frozen=True)
class PaddingId(Number):
    """The id of the padding token; `describe` writes it."""

    ours: str = "embeddings.padding_id"
    theirs: str = "pad_token_id"

    def write(self, config):
        return {}


def write_padding_id(config: ModelConfig) -> dict[str, int]:
    """Returns the field of config.json with a text model's padding id, if any."""
    padding_id = config.embeddings.padding_id if isinstance(config, TextConfig) else None
    return {} if padding_id is None else {"pad_token_id": padding_id}


class Expect(Field):
    """A field of config.json with only some supported values."""

    def __init__(self, theirs: str, *allowed: Any):
        """Takes the field of config.json and its supported values, the default first."""
        self._theirs, self._allowed = theirs, allowed

    def read(self, hf_config):
        hf_config.expect(self._theirs, *self._allowed)
        return {}

    def write(self, config):
        return {}


class Constant(Expect):
    """A field of config.json that always has the same value, which is also the default."""

    def __init__(self, theirs: str, value: Any):
        """Takes the field of config.json and the value."""
        super().__init__(theirs, value)

    def write(self, config):
        return {self._theirs: self._allowed[0]}


@dataclass(frozen=True)
class Computed(Field):
    """Fields that are computed from several other fields."""

    from_hf: Callable[[HFConfig], dict[str, Any]]
    """Config.json -> fields of our configuration."""
    to_hf: Callable[[Any], dict[str, Any]] | None = None
    """Our configuration -> fields of config.json; None to write nothing."""

    def read(self, hf_config):
        return self.from_hf(hf_config)

    def write(self, config):
        return {} if self.to_hf is None else self.to_hf(config)


def numbers(names: Mapping[str, str], defaults: Mapping[str, Any] | None = None) -> list[Number]:
    """Returns `Number` fields: our field -> the field of config.json, with its default if any."""
    defaults = defaults or {}
    return [Number(ours, theirs, defaults.get(theirs, REQUIRED)) for ours, theirs in names.items()]


def resolved(config: ModelConfig) -> ModelConfig:
    """Returns the configuration with explicit numbers instead of None."""
    if config.parts:
        return replace(config, **{name: resolved(part) for name, part in config.parts.items()})
    encoder = getattr(config, "encoder", config)
    values = {}
    if encoder.num_heads == config.num_heads:
        values["num_kv_heads"] = config.kv_heads
    if encoder.head_width == config.head_width:
        values |= {"head_dim": config.head_width, "value_dim": config.value_width}
        if isinstance(own := config.self_attention, DotProductAttention):
            values["self_attention"] = replace(own, scale=own.scale or config.head_width**-0.5)
    if config.embeddings.dropout is None:
        values["embeddings"] = replace(config.embeddings, dropout=config.dropout)
    if hasattr(config, "num_decoder_layers"):
        values["num_decoder_layers"] = config.decoder_layers
        values["decoder_embedding_scale"] = config.decoder.embeddings.scale
        values["encoder_heads"] = encoder.num_heads
        values["encoder_mlp_dim"] = encoder.mlp_dim
    return replace(config, **values)


# Activations ------------------------------------------------------------------------------------

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Name of an activation in transformers -> ours; the first name for a value is written."""


def read_activation(hf_config: HFConfig, name: str, default: Any = REQUIRED) -> str:
    """Returns our name of the activation in a field of config.json."""
    return hf_config.choose(name, ACTIVATIONS, default)


def write_activation(activation: str, names: Mapping[str, str] = ACTIVATIONS) -> str:
    """Returns the name of an activation in transformers."""
    return {ours: theirs for theirs, ours in reversed(names.items())}.get(activation, activation)


# Windows ----------------------------------------------------------------------------------------

FULL, SLIDING = "full_attention", "sliding_attention"
Windows = tuple[int | None, ...]


def read_windows(hf_config: HFConfig, usual: Sequence[str], window: int | None) -> Windows:
    """Returns `layer_windows` as the shortest pattern that repeats to the full depth."""
    return shortest_pattern(layer_windows(hf_config, usual, window))


def layer_windows(hf_config: HFConfig, usual: Sequence[str], window: int | None) -> Windows:
    """Returns each layer's window, including the current token, from "layer_types" or `usual`."""
    kinds = hf_config.take("layer_types", None) or usual
    if len(kinds) != len(usual) or not set(kinds) <= {FULL, SLIDING}:
        raise ConfigError(
            f"{hf_config.path}: layer_types = {kinds!r}: must be {len(usual)} times "
            f"{FULL!r} or {SLIDING!r}"
        )
    if SLIDING in kinds and window is None:
        raise ConfigError(
            f"{hf_config.path}: layer_types has {SLIDING!r}, but there is no sliding_window"
        )
    return tuple(window if kind == SLIDING else None for kind in kinds)


def write_windows(windows: Windows, num_layers: int) -> dict[str, Any]:
    """Returns the fields that `read_windows` reads: "layer_types" and "sliding_window"."""
    sizes = [window for window in windows if window is not None]
    kinds = [FULL if window is None else SLIDING for window in windows]
    return {
        "layer_types": kinds * (num_layers // len(windows)),
        "sliding_window": sizes[0] if sizes else None,
    }


def shortest_pattern(layers: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the shortest pattern that yields these values when repeated."""
    count = len(layers)
    lengths = (length for length in range(1, count + 1) if count % length == 0)
    patterns = (tuple(layers[:length]) for length in lengths)
    return next(x for x in patterns if x * (count // len(x)) == tuple(layers))
