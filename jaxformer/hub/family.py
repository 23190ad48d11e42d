"""The interface that runs the models of a family with the inputs of transformers."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.errors import DataError
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.functional.positions.base import Position
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.states import Cache, by_layer, layer_states
from jaxformer.hub.tasks.classes import Arrays, CausalLMTask, Task
from jaxformer.models import ModelOutput
from jaxformer.models.model import Model, ModelConfig

Outputs = dict[str, jax.Array]
SEGMENTS = {"token_type_ids": "token_types", "task_type_ids": "task_types"}
"""Input with segment ids -> the table in our configuration that embeds them."""


class Stack(NamedTuple):
    """The names in transformers of the outputs of a stack of layers."""

    name: str
    """The prefix of "hidden_states" and "attentions"."""
    output: str
    """The name of the last hidden state."""


class HFFamily(abc.ABC):
    """Runs the models of a family with the inputs of transformers."""

    name: str
    inputs: tuple[str, ...] = ("attention_mask", "input_ids", "position_ids")
    """The names of the inputs, except for labels."""
    source: str = "input_ids"
    """The input that is required."""
    labelled: str = "input_ids"
    """The input whose tokens the labels belong to."""
    language_model_task: type[Task] = CausalLMTask
    """The task of a model with a language model head."""
    stacks: ClassVar[Mapping[str, Stack]] = {"": Stack("", "last_hidden_state")}
    """The stacks of layers, by the prefix of their activations."""
    normalized_states: bool = True
    """Whether the last hidden state of a stack is its output, after the final norm."""

    @abc.abstractmethod
    def forward(
        self, model: Model, checkpoint: HFCheckpoint, inputs: Arrays
    ) -> tuple[ModelOutput, Outputs]:
        """Returns the states that heads read, and the outputs that need no head."""

    def encoder_inputs(
        self, checkpoint: HFCheckpoint, inputs: Arrays
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Returns the ids or images, and the keyword arguments of `hidden` or `encode`."""
        ids = required_input(inputs, "input_ids")
        positions, mask = positions_and_mask(checkpoint, inputs, ids)
        return ids, {"positions": positions, "mask": mask}

    def encode(
        self, model: Model, checkpoint: HFCheckpoint, inputs: Arrays
    ) -> tuple[jax.Array, Mask]:
        """Returns the encoder's output `[B, S, D]` of an encoder-decoder, and its padding mask."""
        source, options = self.encoder_inputs(checkpoint, inputs)
        return model.encode(source, **options), _padding_mask(inputs.get("attention_mask"))

    def of(self, config: ModelConfig) -> "HFFamily":
        """Returns the family of one model: this one, unless it depends on the model's parts."""
        del config
        return self

    def vocab_size(self, config: ModelConfig, name: str) -> int:
        """Returns the number of ids of an input, which may be "labels"."""
        del name
        return config.vocab_size

    def ends_normalised(self, checkpoint: HFCheckpoint, prefix: str) -> bool:
        """Returns whether the last hidden state of a stack is its normalised output."""
        del prefix
        return self.normalized_states and checkpoint.model_format.states_end_normalised

    def names_of_inputs(self, config: ModelConfig) -> tuple[str, ...]:
        """Returns the inputs of a model, with the segment ids that it has tables for."""
        tables = getattr(config, "type_sizes", {})
        own = (theirs for theirs, ours in SEGMENTS.items() if ours in tables)
        return tuple(sorted({*self.inputs, *own}))

    def position(self, config: ModelConfig, name: str) -> Position:
        """Returns the position scheme of the tokens of an input, which may be "labels"."""
        del name
        return config.position

    def layer_outputs(self, checkpoint: HFCheckpoint, cache: Cache, outputs: Outputs) -> Outputs:
        """Returns the hidden states and attention weights of all layers that `cache` recorded."""
        found = {}
        for prefix, stack in self.stacks.items():
            states = layer_states(cache, prefix)
            if states and self.ends_normalised(checkpoint, prefix):
                last = outputs[stack.output]
                # OPT 350M's last state is narrower than the others and is left out.
                states = states[:-1] + [last] * (last.shape == states[0].shape)
            found[f"{stack.name}hidden_states"] = states
            found[f"{stack.name}attentions"] = by_layer(cache, prefix, "attn.hook_pattern")
            found["cross_attentions"] = by_layer(cache, prefix, "cross_attn.hook_pattern")
        return {name: jnp.stack(arrays) for name, arrays in found.items() if arrays}


def required_input(inputs: Arrays, name: str) -> jax.Array:
    """Returns an input, or raises DataError if it is missing."""
    if name not in inputs:
        raise DataError(f"inputs: {name} is missing; there are {', '.join(inputs) or 'none'}")
    return inputs[name]


def type_ids_of(inputs: Arrays) -> dict[str, jax.Array]:
    """Returns the segment ids by the names of our tables."""
    return {ours: inputs[theirs] for theirs, ours in SEGMENTS.items() if theirs in inputs}


def positions_and_mask(
    checkpoint: HFCheckpoint, inputs: Arrays, ids: jax.Array
) -> tuple[jax.Array | None, Mask]:
    """Returns the positions `[B, T]` of tokens, or None to count from 0, and their padding mask."""
    mask = inputs.get("attention_mask")
    positions = inputs.get("position_ids")
    counted = checkpoint.model_format.positions
    pad_id = checkpoint.hf_config.take("pad_token_id", None)
    if positions is None and counted is not None and counted.applies(checkpoint.config):
        real = jnp.ones_like(ids) if mask is None else mask
        positions = counted(ids, real, pad_id)
    if mask is None and checkpoint.model_format.hides_padding and pad_id is not None:
        mask = (ids != pad_id).astype(jnp.int32)
    return positions, _padding_mask(mask)


def _padding_mask(mask: jax.Array | None) -> Mask:
    return Mask() if mask is None else KeyPadding(mask > 0)
