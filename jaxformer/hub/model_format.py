"""The files of a system in transformers: its configuration, tensors and classes."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.hub.fields import ConfigMap
from jaxformer.hub.flax_format import FlaxFormat
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks import IGNORED, Task
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap
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


def _unchanged(config: ModelConfig, files: Tensors) -> ModelConfig:
    """The configuration that config.json describes."""
    del files
    return config


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
    buffers: tuple[str, ...] = ()
    """Patterns of tensors in files that are computed and not learned, and are ignored."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of old names of tensors -> the new ones."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that some files store twice -> the tensors that they must be equal to."""
    harmless: tuple[str, ...] = ()
    """Patterns of fields of config.json that do not change the outputs."""
    fitted: Callable[[ModelConfig, Tensors], ModelConfig] = _unchanged
    """Corrects our configuration by the tensors, where config.json is not enough."""
    shift: Shift = StartToken()
    """Makes the decoder's inputs of its targets."""
    repeats_inputs: bool = False
    """Whether a decoder without inputs repeats those of the encoder (BART)."""
    states_end_normalised: bool = True
    """Whether the last of a text model's hidden states is normalised (not in CLIP)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The values of fields that a config.json leaves out, before those of `config_map`."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other names of fields in files -> the name that `config_map` reads."""
    flax: FlaxFormat = FlaxFormat()
    """What its Flax class kept or computed in another way."""
