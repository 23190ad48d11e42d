"""What a file of the zoo says of a system's files: configuration both ways, tensors, heads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.tasks import IGNORED, Task
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models.model import ModelConfig


@dataclass(frozen=True)
class Architecture:
    """One class of transformers: a body with a head."""

    name: str
    """The class: "BertForMaskedLM"."""
    task: Task
    """The heads, and what they are asked."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our configuration that differ from those of the body: {"pooler": None}."""
    prefix: str | None = None
    """What comes before the names of the body, where that is not what the format says."""


def _unchanged(config: ModelConfig, files: TensorFiles) -> ModelConfig:
    """What config.json says is all there is to say."""
    del files
    return config


@dataclass(frozen=True)
class ModelFormat:
    """The files of one `model_type`."""

    model_type: str
    """As config.json has it."""
    read: Callable[[HFConfig], ModelConfig]
    """From config.json to our configuration, without heads."""
    write: Callable[[ModelConfig], dict[str, Any]]
    """And back; what it cannot say is found by reading the result again."""
    weight_map: Callable[[ModelConfig], WeightMap]
    """The names of the tensors of such a model."""
    architectures: tuple[Architecture, ...]
    """The classes, the most usual for a trained model first; one has the `Base` task."""
    tiny: Mapping[str, Any]
    """Fields of transformers' configuration for a small model with odd sizes, in which every part
    is there: tests and the table of parity are made of it."""
    prefix: str = ""
    """What comes before the names of the body in files of models with heads: "bert."."""
    positions: "Positions | None" = None
    """How tokens are counted; None: from 0, padding included."""
    buffers: tuple[str, ...] = ()
    """Patterns of tensors in files that are computed and not learned: they are passed over."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of old names of tensors -> the new ones."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tensors that some files hold a second time -> what they must be equal to."""
    harmless: tuple[str, ...] = ()
    """Patterns of fields of config.json that change nothing that is computed."""
    fitted: Callable[[ModelConfig, TensorFiles], ModelConfig] = _unchanged
    """Our configuration, corrected by what the tensors say and config.json does not."""
    shift: "Shift" = field(default_factory=lambda: StartToken())
    """How the tokens that a decoder shall give become its inputs."""
    repeats_inputs: bool = False
    """A decoder without inputs is asked to repeat those of the encoder (BART)."""
    states_end_normalised: bool = True
    """Whether the last of a text's hidden states is the normalised one (not in CLIP)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What transformers takes for fields that a config.json leaves out, where that is not what
    `read` and the classes take."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other names by which files may call a field -> the one by which `read` asks for it."""


class Shift:
    """A decoder's inputs from the tokens that it shall give; subclasses are frozen dataclasses."""

    def __call__(self, targets: jax.Array, hf_config: HFConfig) -> jax.Array:
        """Int `[B, T]` of the same; the places that do not count (-100) become padding."""
        raise NotImplementedError


@dataclass(frozen=True)
class StartToken(Shift):
    """The start token, then the targets but the last."""

    def __call__(self, targets, hf_config):
        first = jnp.full_like(targets[:, :1], hf_config.take("decoder_start_token_id"))
        return _padded(jnp.concatenate([first, targets[:, :-1]], axis=1), hf_config)


@dataclass(frozen=True)
class LastToFront(Shift):
    """The last target that is no padding, which names the language, then the targets (mBART)."""

    def __call__(self, targets, hf_config):
        targets = _padded(targets, hf_config)
        count = jnp.sum(targets != hf_config.take("pad_token_id"), axis=1, keepdims=True)
        first = jnp.take_along_axis(targets, jnp.maximum(count - 1, 0), axis=1)
        return jnp.concatenate([first, targets[:, :-1]], axis=1)


def _padded(targets: jax.Array, hf_config: HFConfig) -> jax.Array:
    return jnp.where(targets == IGNORED, hf_config.take("pad_token_id"), targets)


class Positions:
    """Where each token stands; subclasses are frozen dataclasses."""

    def applies(self, config: ModelConfig) -> bool:
        """Whether a model of this system counts so; otherwise from 0, padding included."""
        del config
        return True

    def __call__(self, ids: jax.Array, mask: jax.Array, pad_id: int | None) -> jax.Array:
        """Int `[B, T]` of ids and attention mask, both `[B, T]`."""
        raise NotImplementedError


@dataclass(frozen=True)
class CountedByMask(Positions):
    """The real tokens before it; `padding` where the mask is 0 (OPT: -1, BLOOM: 0)."""

    padding: int = -1

    def __call__(self, ids, mask, pad_id):
        mask = (mask > 0).astype(jnp.int32)
        return jnp.where(mask > 0, jnp.cumsum(mask, axis=1) - 1, self.padding)


@dataclass(frozen=True)
class CountedByIds(Positions):
    """The tokens before it that are no padding ids, whatever the mask says (RoBERTa)."""

    def __call__(self, ids, mask, pad_id):
        real = jnp.ones_like(ids) if pad_id is None else (ids != pad_id).astype(jnp.int32)
        return jnp.cumsum(real, axis=1) * real - 1
