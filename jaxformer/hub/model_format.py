"""The files of a system in transformers: its configuration, tensors and classes."""

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError
from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks.classes import IGNORED, Task
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import EncoderDecoderConfig
from jaxformer.models.model import ModelConfig


@dataclass(frozen=True)
class Architecture:
    """One model class of transformers: a body with heads."""

    name: str
    """The name of the class: "BertForMaskedLM"."""
    task: Task
    """The heads, their outputs and the loss."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our configuration that differ from those of the body: {"pooler": None}."""
    prefix: str | None = None
    """The prefix of the body's tensors, where it is not the format's."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json that set the class apart from the others of its system, which are
    false there: {"is_decoder": True}."""
    aliases: tuple[str, ...] = ()
    """Other names of the class in files: "BertForCausalLM" in Flax, "T5WithLMHeadModel" once."""


class Shift(abc.ABC):
    """Makes a decoder's inputs of its targets; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def __call__(self, targets: jax.Array, hf_config: HFConfig) -> jax.Array:
        """Returns the inputs, int `[B, T]`.

        Args:
            targets: int `[B, T]`; those that do not count (-100) become padding.
            hf_config: The values of config.json.
        """


@dataclass(frozen=True)
class StartToken(Shift):
    """The start token, then the targets except for the last."""

    def __call__(self, targets, hf_config):
        first = jnp.full_like(targets[:, :1], hf_config.take("decoder_start_token_id"))
        return _padded(jnp.concatenate([first, targets[:, :-1]], axis=1), hf_config)


@dataclass(frozen=True)
class LastToFront(Shift):
    """The last real target, which names the language, then the other targets (mBART)."""

    def __call__(self, targets, hf_config):
        targets = _padded(targets, hf_config)
        count = jnp.sum(targets != hf_config.take("pad_token_id"), axis=1, keepdims=True)
        first = jnp.take_along_axis(targets, jnp.maximum(count - 1, 0), axis=1)
        return jnp.concatenate([first, targets[:, :-1]], axis=1)


def _padded(targets: jax.Array, hf_config: HFConfig) -> jax.Array:
    return jnp.where(targets == IGNORED, hf_config.take("pad_token_id"), targets)


class Positions(abc.ABC):
    """Counts the positions of tokens; subclasses are frozen dataclasses."""

    def applies(self, config: ModelConfig) -> bool:
        """Whether a model counts its positions so; otherwise from 0, including padding."""
        del config
        return True

    @abc.abstractmethod
    def __call__(self, ids: jax.Array, mask: jax.Array, pad_id: int | None) -> jax.Array:
        """Returns the positions, int `[B, T]`.

        Args:
            ids: int `[B, T]`.
            mask: The attention mask `[B, T]`.
            pad_id: The id of the padding token, if there is one.
        """


@dataclass(frozen=True)
class CountedByMask(Positions):
    """The number of real tokens before each; `padding` where the mask is 0 (OPT: -1, BLOOM: 0)."""

    padding: int = -1

    def __call__(self, ids, mask, pad_id):
        mask = (mask > 0).astype(jnp.int32)
        return jnp.where(mask > 0, jnp.cumsum(mask, axis=1) - 1, self.padding)


@dataclass(frozen=True)
class CountedByIds(Positions):
    """The number of tokens before each whose id is not the padding's (RoBERTa)."""

    def __call__(self, ids, mask, pad_id):
        real = jnp.ones_like(ids) if pad_id is None else (ids != pad_id).astype(jnp.int32)
        return jnp.cumsum(real, axis=1) * real - 1


@dataclass(frozen=True)
class Section:
    """A model within a dual encoder, with a section of config.json and a prefix of its tensors."""

    section: str
    """The field of config.json with its own: "text_config"."""
    prefix: str
    """What precedes the names of its tensors: "text_model."."""
    model_format: "ModelFormat"
    """Its system."""
    architecture: Architecture
    """Its class."""
    shared: tuple[str, ...] = ()
    """The fields of the whole that count in this section too: "projection_dim"."""
    projection: str = ""
    """The tensor of its projection in files of the whole, where it is not its own."""
    older_section: str = ""
    """The field that old files have beside `section`, whose values come first."""
    reads_text: bool = True
    """Whether the ids of special tokens belong to its section."""

    def section_of(self, hf_config: HFConfig) -> HFConfig:
        """Returns the values of this part.

        Args:
            hf_config: Those of the whole.

        Raises:
            ConfigError: The section is no object.
        """
        values = section(hf_config, self.section)
        older = hf_config.take(self.older_section, None) if self.older_section else None
        if older is not None:
            # Transformers completes these before they replace the others.
            values |= {**self.model_format.defaults, **section(hf_config, self.older_section)}
        values |= {name: hf_config.take(name) for name in self.shared}
        return hf_config.section(self.section, values)


def section(hf_config: HFConfig, name: str) -> dict[str, Any]:
    """Returns the values of a section of a config.json; nothing where it is not there.

    Args:
        hf_config: The values of the whole file.
        name: The field with the section.

    Raises:
        ConfigError: It is no JSON object.
    """
    values = hf_config.take(name, None)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{hf_config.path}: {name} = {values!r}: must be an object of fields")
    return dict(values)


def _unchanged(config: ModelConfig, files: Tensors) -> ModelConfig:
    """The configuration that config.json describes."""
    del files
    return config


class Part(NamedTuple):
    """The encoder or the decoder of a composite model."""

    model_format: "ModelFormat"
    """Its system."""
    architecture: Architecture
    """Its class."""
    hf_config: HFConfig
    """The values of its part of config.json."""


@dataclass(frozen=True)
class ModelFormat:
    """The files of one `model_type`."""

    model_type: str
    """The system's name in config.json."""
    config_map: ConfigMap
    """The fields of config.json, except for those of heads."""
    weight_map: Callable[[ModelConfig], WeightMap]
    """Returns the names of the tensors of a model."""
    architectures: tuple[Architecture, ...]
    """The classes, the most usual one for a trained model first; one has no head."""
    prefix: str = ""
    """The prefix of the body's tensors in models with heads: "bert."."""
    positions: Positions | None = None
    """How positions are counted; None: from 0, including padding."""
    hides_padding: bool = False
    """Whether tokens with the padding's id are hidden where no mask is given (T5Gemma)."""
    buffers: tuple[str, ...] = ()
    """Patterns of tensors in files that are computed and not learned, and are ignored."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of old names of tensors -> the new ones."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that some files store twice -> the tensors that they must be equal to, which may be
    copies themselves."""
    harmless: tuple[str, ...] = ()
    """Patterns of fields of config.json that do not change the outputs."""
    fitted: Callable[[ModelConfig, Tensors], ModelConfig] = _unchanged
    """Corrects our configuration by the tensors, where config.json is not enough."""
    fitted_fields: tuple[str, ...] = ()
    """The fields of which config.json says nothing: the tensors alone have them."""
    shift: Shift = StartToken()
    """Makes the decoder's inputs of its targets."""
    repeats_inputs: bool = False
    """Whether a decoder without inputs repeats those of the encoder (BART)."""
    states_end_normalised: bool = True
    """Whether the last of a text model's hidden states is normalised (not in CLIP)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The values of fields that a config.json leaves out, before those of `config_map`."""
    inherited: tuple[str, ...] = ()
    """Fields of which null means what a missing one does: their value in `defaults`."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields in files -> the name that `config_map` reads."""
    flax: FlaxFormat = FlaxFormat()
    """What its Flax class kept or computed in another way."""
    reads_encoder: bool = False
    """Whether its causal class can have cross-attention, whose names `weight_map` then has."""
    bind: "Callable[[ModelFormat, HFConfig, Formats, Any], ModelFormat] | None" = None
    """Returns the format of one model whose config.json names its parts."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """The parts of a composite model, "encoder" and "decoder", in a format that it is bound to."""
    sections: Mapping[str, Section] = field(default_factory=dict)
    """The models that a dual encoder is made of, by our fields."""

    def bound(
        self, hf_config: HFConfig, formats: "Formats", config: ModelConfig | None = None
    ) -> "ModelFormat":
        """Returns the format of the model of a config.json: this one, unless it has parts.

        Args:
            hf_config: The values of the file.
            formats: The known systems by `model_type`.
            config: Our configuration, of which the parts are that the file does not name.

        Raises:
            ConfigError: A part is missing, or is of a system that cannot be that part.
        """
        return self if self.bind is None else self.bind(self, hf_config, formats, config)

    def architecture(self, name: str) -> Architecture | None:
        """Returns the class with a name, in large or small letters; None if there is no such."""
        # MPT was published with its own code, which calls the class MPTForCausalLM.
        for each in self.architectures:
            if name.lower() in (known.lower() for known in (each.name, *each.aliases)):
                return each
        return None

    def classes(self, values: Mapping[str, Any]) -> list[Architecture]:
        """Returns the classes that a config.json with these values may name, see `fields`."""
        names = {name for each in self.architectures for name in each.fields}
        wanted = {name: values.get(name) or False for name in names}
        return [
            each
            for each in self.architectures
            if all(each.fields.get(name, False) == value for name, value in wanted.items())
        ]

    def originals(self, copy: str) -> Iterator[str]:
        """Yields the tensors of which one is a copy: its source, and whatever that is a copy of."""
        while copy in self.copies:
            copy = self.copies[copy]
            yield copy


Formats = Mapping[str, ModelFormat]
"""Systems by their `model_type`."""


def read_config(
    hf_config: HFConfig, model_format: ModelFormat, architecture: Architecture
) -> ModelConfig:
    """Returns our configuration; every field was read, or noted as ignored.

    Args:
        hf_config: The values of a config.json, with defaults.
        model_format: The system.
        architecture: The class.

    Raises:
        ConfigError: A field is missing or has a value that is not supported.
    """
    config = model_format.config_map.read(hf_config)
    if config.causal or isinstance(config, EncoderDecoderConfig):
        hf_config.expect("is_causal", True)  # of all else transformers makes another mask
    if hf_config.values.get("head_dim") == getattr(config, "head_width", None):
        hf_config.take("head_dim", None)  # says what its class derives
    heads = architecture.task.heads(hf_config)
    config = config.with_fields(heads=heads, **architecture.changes)
    hf_config.finish(model_format.harmless)
    return config


def completed(hf_config: HFConfig, model_format: ModelFormat) -> HFConfig:
    """Returns the values under the names that the format reads, with the defaults of the others.

    Args:
        hf_config: The values of a config.json.
        model_format: The system.

    Raises:
        ConfigError: Two names of one field have different values.
    """
    given = {}
    for spelling, value in hf_config.values.items():
        name = model_format.synonyms.get(spelling, spelling)
        if (other := given.setdefault(name, value)) is not value and other != value:
            raise ConfigError(
                f"{hf_config.path}: {spelling} = {value!r} and {name} = {other!r} are two "
                "names of one thing: they must agree"
            )
    inherited = {k for k in model_format.inherited if given.get(k) is None}
    given = {name: value for name, value in given.items() if name not in inherited}
    values = {**model_format.defaults, **given}
    return hf_config.completed(values)
