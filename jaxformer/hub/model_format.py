"""A model type of transformers: the maps of its configuration, tensors and classes to ours."""

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
    """The name of the class, such as "BertForMaskedLM"."""
    task: Task
    """The heads, their outputs and the loss."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the body's configuration: {"pooler": None}."""
    prefix: str | None = None
    """The prefix of the body's tensors; None uses the prefix of the format."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json that only this class sets: {"is_decoder": True}; others have false."""
    aliases: tuple[str, ...] = ()
    """Other names of the class: "BertForCausalLM" in Flax, "T5WithLMHeadModel" in old files."""


Shift = Callable[[jax.Array, HFConfig], jax.Array]
"""Makes a decoder's inputs, int `[B, T]`, from its targets; -100 becomes padding."""


def start_token(targets: jax.Array, hf_config: HFConfig) -> jax.Array:
    """Returns the start token, then all targets except the last."""
    start = hf_config.take("decoder_start_token_id")
    return shift_tokens_right(targets, hf_config.take("pad_token_id"), start)


def shift_tokens_right(
    input_ids: jax.Array, pad_token_id: int, decoder_start_token_id: int
) -> jax.Array:
    """Returns a decoder's inputs for targets: the start token, then all targets except the last.

    Args:
        input_ids: int `[B, T]`; -100 becomes padding.
        pad_token_id: The token for padding.
        decoder_start_token_id: The first token of each row.
    """
    first = jnp.full_like(input_ids[:, :1], decoder_start_token_id)
    shifted = jnp.concatenate([first, input_ids[:, :-1]], axis=1)
    return jnp.where(shifted == IGNORED, pad_token_id, shifted)


def last_to_front(targets: jax.Array, hf_config: HFConfig) -> jax.Array:
    """Returns the last real target, the language token, then the other targets (mBART)."""
    padding = hf_config.take("pad_token_id")
    targets = jnp.where(targets == IGNORED, padding, targets)
    count = jnp.sum(targets != padding, axis=1, keepdims=True)
    first = jnp.take_along_axis(targets, jnp.maximum(count - 1, 0), axis=1)
    return jnp.concatenate([first, targets[:, :-1]], axis=1)


class Positions(abc.ABC):
    """Computes the position ids of tokens; subclasses are frozen dataclasses."""

    def applies(self, config: ModelConfig) -> bool:
        """Whether a model uses the rule; otherwise positions count from 0, including padding."""
        return True

    @abc.abstractmethod
    def __call__(self, ids: jax.Array, mask: jax.Array, pad_id: int | None) -> jax.Array:
        """Returns the positions of `ids` under the attention mask `mask`, all int `[B, T]`."""


@dataclass(frozen=True)
class CountedByMask(Positions):
    """Counts the real tokens before each; `padding` where the mask is 0 (OPT: -1, BLOOM: 0)."""

    padding: int = -1

    def __call__(self, ids, mask, pad_id):
        mask = (mask > 0).astype(jnp.int32)
        return jnp.where(mask > 0, jnp.cumsum(mask, axis=1) - 1, self.padding)


@dataclass(frozen=True)
class CountedByIds(Positions):
    """Counts the tokens before each whose id is not the padding id (RoBERTa)."""

    def __call__(self, ids, mask, pad_id):
        real = jnp.ones_like(ids) if pad_id is None else (ids != pad_id).astype(jnp.int32)
        return jnp.cumsum(real, axis=1) * real - 1


@dataclass(frozen=True)
class Section:
    """A part of a dual encoder: a section of config.json and a prefix of tensor names."""

    section: str
    """The field of config.json with the values of the part: "text_config"."""
    prefix: str
    """The prefix of the part's tensors: "text_model."."""
    model_format: "ModelFormat"
    architecture: Architecture
    shared: tuple[str, ...] = ()
    """Top-level fields that apply to this section too: "projection_dim"."""
    projection: str = ""
    """The tensor of the part's projection, if it is outside of the part."""
    older_section: str = ""
    """A second field for the section in old files; its values take precedence."""
    reads_text: bool = True
    """Whether the section contains the ids of special tokens."""

    def section_of(self, hf_config: HFConfig) -> HFConfig:
        """Returns the values of this part from those of the whole file."""
        values = section(hf_config, self.section)
        older = hf_config.take(self.older_section, None) if self.older_section else None
        if older is not None:
            # Transformers fills in the defaults of these values before they override the others.
            values |= {**self.model_format.defaults, **section(hf_config, self.older_section)}
        values |= {name: hf_config.take(name) for name in self.shared}
        return hf_config.section(self.section, values)


def section(hf_config: HFConfig, name: str) -> dict[str, Any]:
    """Returns the values of a section of config.json; empty if the section is missing."""
    values = hf_config.take(name, None)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{hf_config.path}: {name} = {values!r}: must be an object of fields")
    return dict(values)


def _unchanged(config: ModelConfig, *_: Any) -> ModelConfig:
    """Returns the configuration unchanged."""
    return config


class Part(NamedTuple):
    """The encoder or the decoder of a composite model."""

    model_format: "ModelFormat"
    architecture: Architecture
    hf_config: HFConfig
    """The part's values in config.json."""


@dataclass(frozen=True)
class ModelFormat:
    """How transformers stores the models of one `model_type`."""

    model_type: str
    """The name in config.json, such as "bert"."""
    config_map: ConfigMap
    """The fields of config.json, except for those of heads."""
    weight_map: Callable[[ModelConfig], WeightMap]
    """Returns the tensor names of a model."""
    architectures: tuple[Architecture, ...]
    """The classes: the first one is the default, and one has no head."""
    prefix: str = ""
    """The prefix of the body's tensors in models with heads: "bert."."""
    positions: Positions | None = None
    """How position ids are computed; None counts from 0, including padding."""
    hides_padding: bool = False
    """Whether padding tokens are masked without an attention mask (T5Gemma)."""
    buffers: tuple[str, ...] = ()
    """Patterns of non-learned tensors in files, which are ignored."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of old tensor names -> new names."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Redundant tensor in some files -> the tensor that it duplicates, possibly another copy."""
    harmless: tuple[str, ...] = ()
    """Patterns of fields of config.json that do not change the outputs."""
    fitted: Callable[[ModelConfig, Tensors], ModelConfig] = _unchanged
    """Completes our configuration from the tensors, if config.json is insufficient."""
    fitted_fields: tuple[str, ...] = ()
    """Fields of our configuration that only the tensors determine."""
    shift: Shift = start_token
    """How a decoder's inputs are made from its targets."""
    repeats_inputs: bool = False
    """Whether a decoder without inputs uses the encoder's (BART)."""
    states_end_normalised: bool = True
    """Whether the last hidden state of a text model is normalised (not in CLIP)."""
    returns_features: bool = False
    """Whether the model also returns the frames before its blocks (wav2vec 2.0)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of missing fields; they take precedence over the defaults in `config_map`."""
    inherited: tuple[str, ...] = ()
    """Fields where null means the value in `defaults`."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Alternative name of a field in files -> the name that `config_map` reads."""
    flax: FlaxFormat = FlaxFormat()
    """The differences of the Flax class from PyTorch's."""
    reads_encoder: bool = False
    """Whether the causal class can have cross-attention, whose tensors `weight_map` names."""
    bind: "Callable[[ModelFormat, HFConfig, Formats, Any], ModelFormat] | None" = None
    """Makes the format of a model from a config.json that names its parts; see `bound`."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """The parts "encoder" and "decoder" of a composite model; only in a bound format."""
    sections: Mapping[str, Section] = field(default_factory=dict)
    """Field of our configuration -> part of a dual encoder."""

    def bound(
        self, hf_config: HFConfig, formats: "Formats", config: ModelConfig | None = None
    ) -> "ModelFormat":
        """Returns the format of a model: this one, unless config.json names its parts.

        Parts that config.json does not name are taken from `config`.
        """
        return self if self.bind is None else self.bind(self, hf_config, formats, config)

    def architecture(self, name: str) -> Architecture | None:
        """Returns the class with this name, ignoring case, or None."""
        # MPT was published with custom code, where the class is MPTForCausalLM.
        for each in self.architectures:
            if name.lower() in (known.lower() for known in (each.name, *each.aliases)):
                return each
        return None

    def classes(self, values: Mapping[str, Any]) -> list[Architecture]:
        """Returns the classes that match these values of config.json, see `Architecture.fields`."""
        names = {name for each in self.architectures for name in each.fields}
        wanted = {name: values.get(name) or False for name in names}
        return [
            each
            for each in self.architectures
            if all(each.fields.get(name, False) == value for name, value in wanted.items())
        ]

    def originals(self, copy: str) -> Iterator[str]:
        """Yields the tensor that `copy` duplicates, and so on for duplicates of duplicates."""
        while copy in self.copies:
            copy = self.copies[copy]
            yield copy


Formats = Mapping[str, ModelFormat]
"""`model_type` -> its format."""


def read_config(
    hf_config: HFConfig, model_format: ModelFormat, architecture: Architecture
) -> ModelConfig:
    """Returns our configuration, and records fields unknown to transformers as ignored."""
    config = model_format.config_map.read(hf_config)
    if config.causal or isinstance(config, EncoderDecoderConfig):
        hf_config.expect("is_causal", True)  # otherwise transformers masks differently
    if hf_config.values.get("head_dim") == getattr(config, "head_width", None):
        hf_config.take("head_dim", None)  # redundant: the class derives the same value
    heads = architecture.task.heads(hf_config)
    config = config.with_fields(heads=heads, **architecture.changes)
    hf_config.finish(model_format.harmless)
    return config


def completed(hf_config: HFConfig, model_format: ModelFormat) -> HFConfig:
    """Renames the values to the names that the format reads, and fills in its defaults."""
    given = {}
    for spelling, value in hf_config.values.items():
        name = model_format.synonyms.get(spelling, spelling)
        if (other := given.setdefault(name, value)) is not value and other != value:
            raise ConfigError(
                f"{hf_config.path}: {spelling} = {value!r} and {name} = {other!r} are two names "
                "of one field: must have the same value"
            )
    inherited = {k for k in model_format.inherited if given.get(k) is None}
    given = {name: value for name, value in given.items() if name not in inherited}
    values = {**model_format.defaults, **given}
    return hf_config.completed(values)
