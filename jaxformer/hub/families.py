"""The forward pass of each family, with the input and output names of transformers."""

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp

from jaxformer.errors import DataError
from jaxformer.functional.activations import scope, with_cache
from jaxformer.hub.family import (
    HFFamily,
    Outputs,
    Stack,
    positions_and_mask,
    required_input,
    type_ids_of,
)
from jaxformer.hub.states import STATES, WEIGHTS
from jaxformer.hub.tasks.classes import Arrays, Seq2SeqLMTask, Task
from jaxformer.models import (
    CompositeConfig,
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ModelOutput,
    VisionConfig,
)
from jaxformer.models.heads.contrastive import unit_vectors
from jaxformer.models.model import Model, ModelConfig

if TYPE_CHECKING:
    from jaxformer.hub.checkpoint import HFCheckpoint

_OF_DECODER = ("decoder", "labels")
PATCHES = ("pixel_attention_mask", "pixel_values", "spatial_shapes")
"""The inputs of a vision model whose images have patch grids of different sizes (SigLIP 2)."""


class _Decoder(HFFamily):
    name = "decoder"

    def forward(self, model, checkpoint, inputs):
        ids = required_input(inputs, "input_ids")
        positions, mask = positions_and_mask(checkpoint, inputs, ids)
        hidden = model.hidden(ids, positions=positions, mask=mask, type_ids=type_ids_of(inputs))
        valid = _not_padding(checkpoint, ids, _valid(inputs))
        states = ModelOutput(hidden, None, model.embedding.kernel(), valid)
        return states, {"last_hidden_state": hidden}


class _Encoder(HFFamily):
    name = "encoder"
    inputs = (*HFFamily.inputs, "task_type_ids", "token_type_ids")

    def encoder_inputs(self, checkpoint, inputs):
        ids, options = super().encoder_inputs(checkpoint, inputs)
        return ids, options | {"type_ids": type_ids_of(inputs)}

    def forward(self, model, checkpoint, inputs):
        ids, options = self.encoder_inputs(checkpoint, inputs)
        hidden = model.hidden(ids, **options)
        pooled = model.pooled(hidden)
        outputs = {"last_hidden_state": hidden}
        if checkpoint.config.pooler is not None:
            outputs["pooler_output"] = pooled
        valid = _valid(inputs)
        if any(getattr(head, "pooling", None) == "last" for head in checkpoint.config.heads):
            valid = _not_padding(checkpoint, ids, valid)
        return ModelOutput(hidden, pooled, model.embedding.kernel(), valid), outputs


def _not_padding(
    checkpoint: "HFCheckpoint", ids: jax.Array, valid: jax.Array | None
) -> jax.Array | None:
    """The tokens of which transformers' classifiers read the last one, bool `[B, T]`."""
    # Without a padding id they read one text at a time; then the mask says which tokens are real.
    pad_id = checkpoint.hf_config.take("pad_token_id", None)
    return valid if pad_id is None else ids != pad_id


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
        memory, mask = self.encode(model, checkpoint, inputs)
        targets = _decoder_ids(checkpoint, inputs)
        own = {"attention_mask": _decoder_mask(checkpoint, inputs, targets)}
        decoder = self.decoder_checkpoint(checkpoint)
        decoder_positions, decoder_mask = positions_and_mask(decoder, own, targets)
        hidden = model.decode(
            targets,
            memory,
            encoder_mask=mask,
            positions=decoder_positions,
            mask=decoder_mask,
        )
        outputs = {"last_hidden_state": hidden, "encoder_last_hidden_state": memory}
        return ModelOutput(hidden, hidden[:, 0], model.target_embedding.kernel()), outputs

    def decoder_checkpoint(self, checkpoint: "HFCheckpoint") -> "HFCheckpoint":
        """Returns the checkpoint that says how the decoder's positions are counted."""
        return checkpoint

    def position(self, config, name):
        of_decoder = name.startswith(_OF_DECODER)
        return config.decoder_position if of_decoder else config.position


class _Composite(_EncoderDecoder):
    """An encoder of any family, and a decoder."""

    def __init__(self, encoder: HFFamily):
        """Takes the inputs and the states of the encoder from its family."""
        self._encoder, self.source = encoder, encoder.source
        self.inputs = (*encoder.inputs, "decoder_attention_mask", "decoder_input_ids")

    def of(self, config):
        return _Composite(FAMILIES[type(config.encoder)])

    def names_of_inputs(self, config):
        own = ("decoder_attention_mask", "decoder_input_ids")
        return tuple(sorted({*self._encoder.names_of_inputs(config.encoder), *own}))

    def encoder_inputs(self, checkpoint, inputs):
        return self._encoder.encoder_inputs(checkpoint.part("encoder"), inputs)

    def decoder_checkpoint(self, checkpoint):
        return checkpoint.part("decoder")

    def vocab_size(self, config, name):
        part = config.decoder if name.startswith(_OF_DECODER) else config.encoder
        return part.vocab_size

    def ends_normalised(self, checkpoint, prefix):
        part = checkpoint.part(prefix.removesuffix("."))
        return family_of(part.config).ends_normalised(part, "")


class _Vision(HFFamily):
    name = "vision"
    inputs = ("bool_masked_pos", "noise", *PATCHES)
    source = "pixel_values"
    normalized_states = False

    def encoder_inputs(self, checkpoint, inputs):
        if checkpoint.config.position.any_grid:
            real, pixels, grids = (required_input(inputs, name) for name in PATCHES)
            return pixels, {"grids": grids, "real": real > 0}
        images = jnp.transpose(required_input(inputs, "pixel_values"), (0, 2, 3, 1))
        masked = inputs.get("bool_masked_pos")
        if masked is not None and not checkpoint.config.mask_token:
            raise DataError("inputs: bool_masked_pos: the model has no mask token")
        options = {} if masked is None else {"masked": masked > 0}
        order = _order_of_patches(checkpoint.config, inputs)
        if order is not None:
            options["places"] = order[:, : checkpoint.config.num_read]
        return images, options

    def names_of_inputs(self, config):
        if config.position.any_grid:
            return PATCHES
        hidden = "bool_masked_pos" if config.mask_ratio is None else "noise"
        return hidden, "pixel_values"

    def forward(self, model, checkpoint, inputs):
        config = checkpoint.config
        images, options = self.encoder_inputs(checkpoint, inputs)
        hidden = model.hidden(images, **options)
        states = model.outputs_from(hidden, options.get("places"), options.get("real"))
        outputs = {"last_hidden_state": hidden}
        order = _order_of_patches(config, inputs)
        if order is not None:
            restore = jnp.argsort(order, axis=1)
            outputs["ids_restore"] = restore
            outputs["mask"] = (restore >= config.num_read).astype(jnp.float32)
        one = config.class_token or config.pooler is not None
        if type(checkpoint.architecture.task) is Task and one:
            outputs["pooler_output"] = states.pooled
        return states, outputs


def _order_of_patches(config: VisionConfig, inputs: Arrays) -> jax.Array | None:
    """The order of each image's patches, visible ones first; None if all are read in order."""
    if config.mask_ratio is None or ("noise" not in inputs and not config.mask_ratio):
        return None
    if "noise" not in inputs:
        raise DataError(
            "inputs: noise is missing: give a number for each patch of each image; the "
            f"{config.num_read} patches with the smallest numbers are read; or load the model with "
            "mask_ratio=0.0"
        )
    return jnp.argsort(inputs["noise"], axis=1, stable=True)


class _DualEncoder(HFFamily):
    name = "dual encoder"
    inputs = (*_Encoder.inputs, *PATCHES, "return_loss")
    sides: ClassVar = {
        "text": ("input_ids", "text_model_output."),
        "image": ("pixel_values", "vision_model_output."),
    }
    """Field of our configuration -> the input of the part, and the prefix of its outputs."""

    def names_of_inputs(self, config):
        names = set(super().names_of_inputs(config))
        others = set() if config.image.position.any_grid else set(PATCHES) - {"pixel_values"}
        return tuple(sorted(names - others))

    def forward(self, model, checkpoint, inputs):
        """Runs both encoders; with texts or images alone, leaves out the similarities."""
        if not {"input_ids", "pixel_values"} & set(inputs):
            raise DataError(
                "inputs: input_ids and pixel_values are missing: give one of them, or both"
            )
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
    CompositeConfig: _Composite(_Encoder()),
    DecoderConfig: _Decoder(),
    DualEncoderConfig: _DualEncoder(),
    EncoderConfig: _Encoder(),
    EncoderDecoderConfig: _EncoderDecoder(),
    VisionConfig: _Vision(),
}
"""Type of a configuration -> its family."""


def family_of(config: ModelConfig) -> HFFamily:
    """Returns the family of a configuration."""
    return FAMILIES[type(config)].of(config)


def forward(
    model: Model,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    hidden_states: bool = False,
    attentions: bool = False,
) -> Outputs:
    """Returns the outputs of the model's class in transformers: "logits", "loss", ...

    Args:
        model: The model.
        checkpoint: Its description.
        inputs: "input_ids", "attention_mask", "token_type_ids", "labels", ...
        hidden_states: Whether to add "hidden_states" `[layers + 1, B, T, D]`.
        attentions: Whether to add "attentions" `[layers, B, N, T, S]`.
    """
    family, task = family_of(checkpoint.config), checkpoint.architecture.task
    names = STATES * hidden_states + WEIGHTS * attentions
    run = with_cache(family.forward, names, required=False)
    rows = task.rows(inputs, checkpoint.hf_config)
    (states, outputs), cache = run(model, checkpoint, rows)
    outputs |= family.layer_outputs(checkpoint, cache, outputs)
    return outputs | task.outputs(model, states, inputs, checkpoint.hf_config)


def _valid(inputs: Arrays) -> jax.Array | None:
    """The real tokens, bool `[B, T]`; None if all are real."""
    given = inputs.get("attention_mask")
    return None if given is None else given > 0


def _decoder_mask(
    checkpoint: "HFCheckpoint", inputs: Arrays, targets: jax.Array
) -> jax.Array | None:
    """The mask of the decoder's inputs `[B, T]`; None if all are real."""
    given = inputs.get("decoder_attention_mask")
    if given is not None:
        return given
    return checkpoint.architecture.task.decoder_mask(targets, inputs, checkpoint.hf_config)


def _decoder_ids(checkpoint: "HFCheckpoint", inputs: Arrays) -> jax.Array:
    """The decoder's inputs: as given, or its targets, shifted."""
    if "decoder_input_ids" in inputs:
        return inputs["decoder_input_ids"]
    task, repeats = checkpoint.architecture.task, checkpoint.repeats_inputs
    if task.labels_are_decoder_targets and "labels" in inputs:
        targets = inputs["labels"]
    elif repeats and "input_ids" in inputs:
        targets = inputs["input_ids"]
    else:
        raise DataError("inputs: decoder_input_ids (or labels) is missing")
    return checkpoint.model_format.shift(targets, checkpoint.hf_config)
