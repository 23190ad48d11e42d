"""The forward pass of each family, with the names of inputs and outputs in transformers."""

import abc

import jax
import jax.numpy as jnp

from jaxformer.errors import DataError
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.functional.positions.base import Position
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.tasks import Arrays, CausalLMTask, Seq2SeqLMTask, Task
from jaxformer.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    ModelOutput,
    VisionConfig,
)
from jaxformer.models.model import Model, ModelConfig

Outputs = dict[str, jax.Array]
SEGMENTS = {"token_type_ids": "token_types", "task_type_ids": "task_types"}
"""Input with a segment of each token -> the table of our configuration that has its rows."""


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

    @abc.abstractmethod
    def forward(
        self, model: Model, checkpoint: HFCheckpoint, inputs: Arrays, layers: bool
    ) -> tuple[ModelOutput, Outputs]:
        """Returns the states that heads read, and the outputs that need no head.

        Args:
            model: The model.
            checkpoint: Its description.
            inputs: Arrays by their names in transformers.
            layers: Whether to add the hidden states of every layer.

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


class _Decoder(HFFamily):
    name = "decoder"

    def forward(self, model, checkpoint, inputs, layers):
        ids = _required(inputs, "input_ids")
        positions, mask = _positions_and_mask(checkpoint, inputs, ids)
        capture = [] if layers else None
        hidden = model.hidden(ids, positions=positions, mask=mask, capture=capture)
        # Classifiers in transformers read the last token whose id is not the padding's.
        pad_id = checkpoint.hf_config.take("pad_token_id", None)
        valid = jnp.ones_like(ids, bool) if pad_id is None else ids != pad_id
        states = ModelOutput(hidden, None, model.embedding.kernel(), valid)
        return states, {"last_hidden_state": hidden} | _hidden_states(checkpoint, capture, hidden)


class _Encoder(HFFamily):
    name = "encoder"
    inputs = (*HFFamily.inputs, "task_type_ids", "token_type_ids")

    def forward(self, model, checkpoint, inputs, layers):
        ids = _required(inputs, "input_ids")
        positions, mask = _positions_and_mask(checkpoint, inputs, ids)
        capture = [] if layers else None
        type_ids = {ours: inputs[theirs] for theirs, ours in SEGMENTS.items() if theirs in inputs}
        hidden = model.hidden(
            ids, positions=positions, mask=mask, type_ids=type_ids, capture=capture
        )
        pooled = model.pooled(hidden)
        outputs = {"last_hidden_state": hidden} | _hidden_states(checkpoint, capture, hidden)
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

    def forward(self, model, checkpoint, inputs, layers):
        captures = ([], []) if layers else (None, None)
        memory, mask = encode(model, checkpoint, inputs, captures[0])
        targets = _decoder_ids(checkpoint, inputs)
        own = {"attention_mask": inputs.get("decoder_attention_mask")}
        decoder_positions, decoder_mask = _positions_and_mask(checkpoint, own, targets)
        hidden = model.decode(
            targets,
            memory,
            encoder_mask=mask,
            positions=decoder_positions,
            mask=decoder_mask,
            capture=captures[1],
        )
        outputs = {"last_hidden_state": hidden, "encoder_last_hidden_state": memory}
        outputs |= _stacked("encoder_hidden_states", captures[0], memory)
        outputs |= _stacked("decoder_hidden_states", captures[1], hidden)
        return ModelOutput(hidden, hidden[:, 0], model.target_embedding.kernel()), outputs

    def position(self, config, name):
        of_decoder = name.startswith(("decoder", "labels"))
        return config.decoder_position if of_decoder else config.position


class _Vision(HFFamily):
    name = "vision"
    inputs = ("bool_masked_pos", "pixel_values")

    def forward(self, model, checkpoint, inputs, layers):
        config = checkpoint.config
        capture = [] if layers else None
        images = jnp.transpose(_required(inputs, "pixel_values"), (0, 2, 3, 1))
        masked = inputs.get("bool_masked_pos")
        if masked is not None and not config.mask_token:
            raise DataError("inputs: bool_masked_pos: the model has no token for masked patches")
        masked = None if masked is None else masked > 0
        hidden = model.hidden(images, capture=capture, masked=masked)
        states = model.outputs_from(hidden)
        outputs = {"last_hidden_state": hidden}
        if capture is not None:
            # Unlike those of text models, the last of these is not normalised.
            outputs["hidden_states"] = jnp.stack(capture)
        one = config.class_token or config.pooler is not None
        if type(checkpoint.architecture.task) is Task and one:
            outputs["pooler_output"] = states.pooled
        return states, outputs


FAMILIES: dict[type, HFFamily] = {
    DecoderConfig: _Decoder(),
    EncoderConfig: _Encoder(),
    EncoderDecoderConfig: _EncoderDecoder(),
    VisionConfig: _Vision(),
}
"""Type of a configuration -> the family."""


def family_of(config: ModelConfig) -> HFFamily:
    """Returns the family of a configuration."""
    return FAMILIES[type(config)]


def forward(
    model: Model, checkpoint: HFCheckpoint, inputs: Arrays, layers: bool = False
) -> Outputs:
    """Returns what the model's class in transformers would return.

    Args:
        model: The model.
        checkpoint: Its description.
        inputs: "input_ids", "attention_mask", "token_type_ids", "labels", ...
        layers: Whether to add "hidden_states" `[layers + 1, B, T, D]`.

    Returns:
        "last_hidden_state", "pooler_output", "logits", "loss", ...: those that the model has.
    """
    family = family_of(checkpoint.config)
    states, outputs = family.forward(model, checkpoint, inputs, layers)
    task = checkpoint.architecture.task
    return outputs | task.outputs(model, states, inputs, checkpoint.hf_config)


def encode(
    model: EncoderDecoder,
    checkpoint: HFCheckpoint,
    inputs: Arrays,
    capture: list[jax.Array] | None = None,
) -> tuple[jax.Array, Mask]:
    """Returns the encoder's output in an encoder-decoder, and its padding mask.

    Args:
        model: The model.
        checkpoint: Its description.
        inputs: "input_ids" and perhaps "attention_mask", "position_ids".
        capture: Receives the states of every layer, unless it is None.

    Returns:
        `[B, S, D]`, and the mask.
    """
    ids = _required(inputs, "input_ids")
    positions, mask = _positions_and_mask(checkpoint, inputs, ids)
    return model.encode(ids, positions=positions, mask=mask, capture=capture), mask


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


def _hidden_states(
    checkpoint: HFCheckpoint, capture: list[jax.Array] | None, last: jax.Array
) -> Outputs:
    raw = capture and not checkpoint.model_format.states_end_normalised
    return _stacked("hidden_states", capture, capture[-1] if raw else last)


def _stacked(name: str, capture: list[jax.Array] | None, last: jax.Array) -> Outputs:
    """The captured states, the last of them replaced by `last`, which is normalised."""
    if capture is None:
        return {}
    # A last state narrower than the others (OPT 350M) is left out.
    return {name: jnp.stack([*capture[:-1], *([last] if last.shape == capture[0].shape else [])])}
