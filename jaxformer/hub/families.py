"""The forward pass of each family, with the names of inputs and outputs in transformers."""

import abc
import re
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.errors import DataError
from jaxformer.functional.activations import scope, with_cache
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.functional.positions.base import Position
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.tasks import Arrays, CausalLMTask, Seq2SeqLMTask, Task
from jaxformer.models import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    ModelOutput,
    VisionConfig,
)
from jaxformer.models.heads.contrastive import unit_vectors
from jaxformer.models.model import Model, ModelConfig

Outputs = dict[str, jax.Array]
Cache = Mapping[str, jax.Array]
STATES = ("*blocks.0.hook_resid_pre", "*.hook_resid_post", "*.hook_normalized_resid_post")
"""The activations of which `layer_outputs` makes the hidden states."""
WEIGHTS = ("*attn.hook_pattern",)
"""The activations of which `layer_outputs` makes the attention weights."""
SEGMENTS = {"token_type_ids": "token_types", "task_type_ids": "task_types"}
"""Input with a segment of each token -> the table of our configuration that has its rows."""


class Stack(NamedTuple):
    """What transformers calls the outputs of a stack of layers."""

    name: str
    """Precedes "hidden_states" and "attentions"."""
    output: str
    """The output that is the stack's last state."""


class HFFamily(abc.ABC):
    """How models of a family are run with the inputs of transformers."""

    name: str
    """The name of the family."""
    inputs: tuple[str, ...] = ("attention_mask", "input_ids", "position_ids")
    """The names of the inputs, except for labels."""
    labelled: str = "input_ids"
    """The input whose tokens have the labels."""
    language_model_task: type[Task] = CausalLMTask
    """The task of a model with a language model head."""
    stacks: ClassVar[Mapping[str, Stack]] = {"": Stack("", "last_hidden_state")}
    """The stacks of layers, by the prefix of their activations."""
    normalized_states: bool = True
    """Whether the last of the hidden states of a stack is its output, behind the last norm."""

    @abc.abstractmethod
    def forward(
        self, model: Model, checkpoint: HFCheckpoint, inputs: Arrays
    ) -> tuple[ModelOutput, Outputs]:
        """Returns the states that heads read, and the outputs that need no head.

        Args:
            model: The model.
            checkpoint: Its description.
            inputs: Arrays by their names in transformers.

        Raises:
            DataError: An input is missing.
        """

    def position(self, config: ModelConfig, name: str) -> Position:
        """Returns the position scheme of the tokens of an input.

        Args:
            config: The model.
            name: The input, or "labels".
        """
        del name
        return config.position

    def layer_outputs(self, checkpoint: HFCheckpoint, cache: Cache, outputs: Outputs) -> Outputs:
        """Returns the hidden states and attention weights of all layers, as far as recorded.

        Args:
            checkpoint: The description of the model.
            cache: The activations that match `STATES` and `WEIGHTS`.
            outputs: What `forward` returned.
        """
        found = {}
        for prefix, stack in self.stacks.items():
            states = layer_states(cache, prefix)
            if states and self.normalized_states and checkpoint.model_format.states_end_normalised:
                last = outputs[stack.output]
                # A last state narrower than the others (OPT 350M) is left out.
                states = states[:-1] + [last] * (last.shape == states[0].shape)
            found[f"{stack.name}hidden_states"] = states
            found[f"{stack.name}attentions"] = by_layer(cache, prefix, "attn.hook_pattern")
            found["cross_attentions"] = by_layer(cache, prefix, "cross_attn.hook_pattern")
        return {name: jnp.stack(arrays) for name, arrays in found.items() if arrays}


class _Decoder(HFFamily):
    name = "decoder"

    def forward(self, model, checkpoint, inputs):
        ids = _required(inputs, "input_ids")
        positions, mask = _positions_and_mask(checkpoint, inputs, ids)
        hidden = model.hidden(ids, positions=positions, mask=mask)
        # Classifiers in transformers read the last token whose id is not the padding's.
        pad_id = checkpoint.hf_config.take("pad_token_id", None)
        valid = jnp.ones_like(ids, bool) if pad_id is None else ids != pad_id
        states = ModelOutput(hidden, None, model.embedding.kernel(), valid)
        return states, {"last_hidden_state": hidden}


class _Encoder(HFFamily):
    name = "encoder"
    inputs = (*HFFamily.inputs, "task_type_ids", "token_type_ids")

    def forward(self, model, checkpoint, inputs):
        ids = _required(inputs, "input_ids")
        positions, mask = _positions_and_mask(checkpoint, inputs, ids)
        type_ids = {ours: inputs[theirs] for theirs, ours in SEGMENTS.items() if theirs in inputs}
        hidden = model.hidden(ids, positions=positions, mask=mask, type_ids=type_ids)
        pooled = model.pooled(hidden)
        outputs = {"last_hidden_state": hidden}
        if checkpoint.config.pooler is not None:
            outputs["pooler_output"] = pooled
        given = inputs.get("attention_mask")
        valid = None if given is None else given > 0
        return ModelOutput(hidden, pooled, model.embedding.kernel(), valid), outputs


class _EncoderDecoder(HFFamily):
    name = "encoder-decoder"
    inputs = (*_Encoder.inputs, "decoder_attention_mask", "decoder_input_ids")
    labelled = "decoder_input_ids"
    language_model_task = Seq2SeqLMTask
    stacks: ClassVar = {
        "encoder.": Stack("encoder_", "encoder_last_hidden_state"),
        "decoder.": Stack("decoder_", "last_hidden_state"),
    }

    def forward(self, model, checkpoint, inputs):
        memory, mask = encode(model, checkpoint, inputs)
        targets = _decoder_ids(checkpoint, inputs)
        own = {"attention_mask": inputs.get("decoder_attention_mask")}
        decoder_positions, decoder_mask = _positions_and_mask(checkpoint, own, targets)
        hidden = model.decode(
            targets,
            memory,
            encoder_mask=mask,
            positions=decoder_positions,
            mask=decoder_mask,
        )
        outputs = {"last_hidden_state": hidden, "encoder_last_hidden_state": memory}
        return ModelOutput(hidden, hidden[:, 0], model.target_embedding.kernel()), outputs

    def position(self, config, name):
        of_decoder = name.startswith(("decoder", "labels"))
        return config.decoder_position if of_decoder else config.position


class _Vision(HFFamily):
    name = "vision"
    inputs = ("bool_masked_pos", "pixel_values")
    normalized_states = False

    def forward(self, model, checkpoint, inputs):
        config = checkpoint.config
        images = jnp.transpose(_required(inputs, "pixel_values"), (0, 2, 3, 1))
        masked = inputs.get("bool_masked_pos")
        if masked is not None and not config.mask_token:
            raise DataError("inputs: bool_masked_pos: the model has no token for masked patches")
        masked = None if masked is None else masked > 0
        hidden = model.hidden(images, masked=masked)
        states = model.outputs_from(hidden)
        outputs = {"last_hidden_state": hidden}
        one = config.class_token or config.pooler is not None
        if type(checkpoint.architecture.task) is Task and one:
            outputs["pooler_output"] = states.pooled
        return states, outputs


class _DualEncoder(HFFamily):
    name = "dual encoder"
    inputs = (*_Encoder.inputs, "pixel_values", "return_loss")
    sides: ClassVar = {
        "text": ("input_ids", "text_model_output."),
        "image": ("pixel_values", "vision_model_output."),
    }
    """Field of our configuration -> what it reads, and the prefix of its own outputs."""

    def forward(self, model, checkpoint, inputs):
        """As in transformers; also for texts alone or images alone, without their similarities."""
        if not {"input_ids", "pixel_values"} & set(inputs):
            raise DataError("inputs: input_ids and pixel_values are missing: give both, or one")
        outputs, states, vectors = {}, {}, {}
        for name, (reads, prefix) in self.sides.items():
            if reads not in inputs:
                continue
            part, own = checkpoint.part(name), getattr(model, name)
            family, task = family_of(part.config), part.architecture.task
            with scope(name):
                states[name], found = family.forward(own, part, inputs)
            found |= task.outputs(own, states[name], inputs, part.hf_config)
            projected = found.pop(f"{name}_embeds", None)
            if projected is None:
                projected = found["pooler_output"]
            found.setdefault("pooler_output", projected)
            vectors[name] = unit_vectors(projected)
            outputs |= {prefix + own_name: array for own_name, array in found.items()}
        outputs |= {f"{name}_embeds": array for name, array in vectors.items()}
        similarities = model.similarities(**vectors) if len(vectors) == len(self.sides) else None
        return next(iter(states.values()))._replace(similarities=similarities), outputs

    def layer_outputs(self, checkpoint, cache, outputs):
        found = {}
        for name, (_, prefix) in self.sides.items():
            part, scoped = checkpoint.part(name), f"{name}."
            own = {n.removeprefix(scoped): x for n, x in cache.items() if n.startswith(scoped)}
            if own:
                of_part = {
                    n.removeprefix(prefix): x for n, x in outputs.items() if n.startswith(prefix)
                }
                layers = family_of(part.config).layer_outputs(part, own, of_part)
                found |= {prefix + n: x for n, x in layers.items()}
        return found


FAMILIES: dict[type, HFFamily] = {
    DecoderConfig: _Decoder(),
    DualEncoderConfig: _DualEncoder(),
    EncoderConfig: _Encoder(),
    EncoderDecoderConfig: _EncoderDecoder(),
    VisionConfig: _Vision(),
}
"""Type of a configuration -> the family."""


def family_of(config: ModelConfig) -> HFFamily:
    """Returns the family of a configuration."""
    return FAMILIES[type(config)]


def layer_states(cache: Cache, prefix: str = "") -> list[jax.Array]:
    """The input of the first layer of a stack, and the output of each.

    Args:
        cache: The activations that match `STATES`.
        prefix: That of the stack: "", "encoder." or "decoder.".

    Returns:
        `layers + 1` arrays `[B, T, D]`; none if none was recorded.
    """
    first = by_layer(cache, prefix, "hook_resid_pre")
    normalized = by_layer(cache, prefix, "hook_normalized_resid_post")
    return first[:1] + (normalized or by_layer(cache, prefix, "hook_resid_post"))


def by_layer(cache: Cache, prefix: str, name: str) -> list[jax.Array]:
    """The activation of a name in every layer that has it.

    Args:
        cache: Activations.
        prefix: That of the stack: "", "encoder." or "decoder.".
        name: The name within a block: "attn.hook_pattern".

    Returns:
        The arrays, from the first layer on.
    """
    names = re.compile(rf"{re.escape(prefix)}blocks\.(\d+)\.{re.escape(name)}")
    layers = {int(found[1]): cache[found[0]] for found in map(names.fullmatch, cache) if found}
    return [layers[number] for number in sorted(layers)]


def forward(
    model: Model,
    checkpoint: HFCheckpoint,
    inputs: Arrays,
    *,
    hidden_states: bool = False,
    attentions: bool = False,
) -> Outputs:
    """Returns what the model's class in transformers would return.

    Args:
        model: The model.
        checkpoint: Its description.
        inputs: "input_ids", "attention_mask", "token_type_ids", "labels", ...
        hidden_states: Whether to add "hidden_states" `[layers + 1, B, T, D]`.
        attentions: Whether to add "attentions" `[layers, B, N, T, S]`.

    Returns:
        "last_hidden_state", "pooler_output", "logits", "loss", ...: those that the model has.
    """
    family = family_of(checkpoint.config)
    names = STATES * hidden_states + WEIGHTS * attentions
    run = with_cache(family.forward, names, required=False)
    (states, outputs), cache = run(model, checkpoint, inputs)
    outputs |= family.layer_outputs(checkpoint, cache, outputs)
    task = checkpoint.architecture.task
    return outputs | task.outputs(model, states, inputs, checkpoint.hf_config)


def encode(
    model: EncoderDecoder, checkpoint: HFCheckpoint, inputs: Arrays
) -> tuple[jax.Array, Mask]:
    """Returns the encoder's output in an encoder-decoder, and its padding mask.

    Args:
        model: The model.
        checkpoint: Its description.
        inputs: "input_ids" and perhaps "attention_mask", "position_ids".

    Returns:
        `[B, S, D]`, and the mask.
    """
    ids = _required(inputs, "input_ids")
    positions, mask = _positions_and_mask(checkpoint, inputs, ids)
    return model.encode(ids, positions=positions, mask=mask), mask


def _decoder_ids(checkpoint: HFCheckpoint, inputs: Arrays) -> jax.Array:
    """The decoder's inputs: those that are given, or its targets, shifted."""
    if "decoder_input_ids" in inputs:
        return inputs["decoder_input_ids"]
    task, repeats = checkpoint.architecture.task, checkpoint.repeats_inputs
    if task.labels_are_decoder_targets and "labels" in inputs:
        targets = inputs["labels"]
    elif repeats and "input_ids" in inputs:
        targets = inputs["input_ids"]
    else:
        raise DataError("inputs: decoder_input_ids (or labels, of which they are made) is missing")
    return checkpoint.model_format.shift(targets, checkpoint.hf_config)


def _required(inputs: Arrays, name: str) -> jax.Array:
    if name not in inputs:
        raise DataError(f"inputs: {name} is missing; there are {', '.join(inputs) or 'none'}")
    return inputs[name]


def _positions_and_mask(
    checkpoint: HFCheckpoint, inputs: Arrays, ids: jax.Array
) -> tuple[jax.Array | None, Mask]:
    """Positions and mask of the encoder's or the decoder's tokens."""
    mask = inputs.get("attention_mask")
    positions = inputs.get("position_ids")
    counted = checkpoint.model_format.positions
    if positions is None and counted is not None and counted.applies(checkpoint.config):
        real = jnp.ones_like(ids) if mask is None else mask
        positions = counted(ids, real, checkpoint.hf_config.take("pad_token_id", None))
    return positions, Mask() if mask is None else KeyPadding(mask > 0)
