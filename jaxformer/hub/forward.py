"""A forward pass with transformers' names for what goes in and what comes out."""

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import DataError
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.tasks import Arrays, Seq2SeqLMTask, Task
from jaxformer.models import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    ModelOutput,
    VisionConfig,
)
from jaxformer.models.model import Model

Outputs = dict[str, jax.Array]


def outputs_of(
    model: Model, checkpoint: HFCheckpoint, inputs: Arrays, layers: bool = False
) -> Outputs:
    """What transformers' class would give.

    Args:
        model: Ours.
        checkpoint: Its description.
        inputs: "input_ids", "attention_mask", "token_type_ids", "labels", ...
        layers: Whether to add "hidden_states" `[layers + 1, B, T, D]`.

    Returns:
        "last_hidden_state", "pooler_output", "logits", "loss", ...: those that the model has.
    """
    states, outputs = _run(checkpoint.config, model, checkpoint, inputs, layers)
    return outputs | checkpoint.architecture.task.outputs(
        model, states, inputs, checkpoint.hf_config
    )


def encoded(
    model: EncoderDecoder,
    checkpoint: HFCheckpoint,
    inputs: Arrays,
    capture: list[jax.Array] | None = None,
) -> tuple[jax.Array, Mask]:
    """What an encoder-decoder's encoder makes of its inputs, and which places of it are real.

    Args:
        model: Ours.
        checkpoint: Its description.
        inputs: "input_ids" and perhaps "attention_mask", "position_ids".
        capture: Receives the states of every layer; None: they are not wanted.

    Returns:
        `[B, S, D]`, and the mask.
    """
    ids = _required(inputs, "input_ids")
    positions, mask = _places(checkpoint, inputs, ids)
    return model.encode(ids, positions=positions, mask=mask, capture=capture), mask


@singledispatch
def _run(
    config: Any, model: Model, checkpoint: HFCheckpoint, inputs: Arrays, layers: bool
) -> tuple[ModelOutput, Outputs]:
    """The hidden states of a family, and the outputs that need no head."""
    raise NotImplementedError(type(config))


@_run.register
def _decoder(config: DecoderConfig, model, checkpoint, inputs, layers):
    ids = _required(inputs, "input_ids")
    positions, mask = _places(checkpoint, inputs, ids)
    capture = [] if layers else None
    hidden = model.hidden(ids, positions=positions, mask=mask, capture=capture)
    # Classifiers there read the last token that is not padding, by its id.
    pad_id = checkpoint.hf_config.take("pad_token_id", None)
    valid = jnp.ones_like(ids, bool) if pad_id is None else ids != pad_id
    states = ModelOutput(hidden, None, model.embedding.kernel(), valid)
    return states, {"last_hidden_state": hidden} | _hidden_states(checkpoint, capture, hidden)


@_run.register
def _encoder(config: EncoderConfig, model, checkpoint, inputs, layers):
    ids = _required(inputs, "input_ids")
    positions, mask = _places(checkpoint, inputs, ids)
    capture = [] if layers else None
    type_ids = {
        ours: inputs[theirs]
        for ours, theirs in (("token_types", "token_type_ids"), ("task_types", "task_type_ids"))
        if theirs in inputs
    }
    hidden = model.hidden(ids, positions=positions, mask=mask, type_ids=type_ids, capture=capture)
    pooled = model.pooled(hidden)
    outputs = {"last_hidden_state": hidden} | _hidden_states(checkpoint, capture, hidden)
    if config.pooler is not None:
        outputs["pooler_output"] = pooled
    given = inputs.get("attention_mask")
    valid = None if given is None else given > 0
    return ModelOutput(hidden, pooled, model.embedding.kernel(), valid), outputs


@_run.register
def _encoder_decoder(config: EncoderDecoderConfig, model, checkpoint, inputs, layers):
    captures = ([], []) if layers else (None, None)
    memory, mask = encoded(model, checkpoint, inputs, captures[0])
    targets = _decoder_ids(checkpoint, inputs)
    own = {"attention_mask": inputs.get("decoder_attention_mask")}
    decoder_positions, decoder_mask = _places(checkpoint, own, targets)
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


@_run.register
def _vision(config: VisionConfig, model, checkpoint, inputs, layers):
    capture = [] if layers else None
    images = jnp.transpose(_required(inputs, "pixel_values"), (0, 2, 3, 1))
    masked = inputs.get("bool_masked_pos")
    if masked is not None and not config.mask_token:
        raise DataError("inputs: bool_masked_pos: the model has no token for masked patches")
    hidden = model.hidden(images, capture=capture, masked=None if masked is None else masked > 0)
    states = model.outputs_from(hidden)
    outputs = {"last_hidden_state": hidden}
    if capture is not None:
        # Unlike those of text, these are all as they come out of the blocks.
        outputs["hidden_states"] = jnp.stack(capture)
    one = config.class_token or config.pooler is not None
    if type(checkpoint.architecture.task) is Task and one:
        outputs["pooler_output"] = states.pooled
    return states, outputs


def _decoder_ids(checkpoint: HFCheckpoint, inputs: Arrays) -> jax.Array:
    """What the decoder reads: what is given, or what it shall give, shifted."""
    if "decoder_input_ids" in inputs:
        return inputs["decoder_input_ids"]
    name = "labels" if isinstance(checkpoint.architecture.task, Seq2SeqLMTask) else "input_ids"
    if name not in inputs and checkpoint.repeats_inputs:
        name = "input_ids"
    if name not in inputs or (name == "input_ids" and not checkpoint.repeats_inputs):
        raise DataError("inputs: decoder_input_ids (or labels, of which they are made) is missing")
    return checkpoint.model_format.shift(inputs[name], checkpoint.hf_config)


def _required(inputs: Arrays, name: str) -> jax.Array:
    if name not in inputs:
        raise DataError(f"inputs: {name} is missing; there are {', '.join(inputs) or 'none'}")
    return inputs[name]


def _places(checkpoint: HFCheckpoint, inputs: Arrays, ids: jax.Array):
    """Positions and mask of one side."""
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
    """The captured states, with `last` for the last of them: that one is normalised."""
    if capture is None:
        return {}
    # Where that is narrower than the others (OPT 350M) it is not among them.
    return {name: jnp.stack([*capture[:-1], *([last] if last.shape == capture[0].shape else [])])}
