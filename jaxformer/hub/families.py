"""The forward pass of each family, with the input and output names of transformers."""

# long: the interface of a family is easier to read next to its six implementations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxformer.errors import DataError
from jaxformer.functional.activations import scope, with_cache
from jaxformer.functional.arrays import whole_rows
from jaxformer.functional.dropout import split
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.functional.positions.base import Position
from jaxformer.hub.tasks.classes import Arrays, CausalLMTask, Seq2SeqLMTask, Task
from jaxformer.models import (
    CompositeConfig,
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ModelOutput,
    SpectrogramConfig,
    SpectrogramPatchesConfig,
    VisionConfig,
    WaveformConfig,
)
from jaxformer.models.heads.contrastive import unit_vectors
from jaxformer.models.model import Model, ModelConfig
from jaxformer.models.states import STATES, WEIGHTS, Cache, by_layer, layer_states

if TYPE_CHECKING:
    from jaxformer.hub.checkpoint import HFCheckpoint

Outputs = dict[str, jax.Array]
SEGMENTS = {"token_type_ids": "token_types", "task_type_ids": "task_types"}
"""Input with segment ids -> its embedding table in our configuration."""
_DECODER_INPUTS = ("decoder", "labels")
_OF_DECODER = ("decoder_attention_mask", "decoder_input_ids")
PATCHES = ("pixel_attention_mask", "pixel_values", "spatial_shapes")
"""The inputs of a vision model whose images have patch grids of different sizes (SigLIP 2)."""


class HFFamily(abc.ABC):
    """The base of families: runs models on inputs named as in transformers."""

    name: str
    inputs: tuple[str, ...] = ("attention_mask", "input_ids", "position_ids")
    """The names of the inputs, except for labels."""
    source: str = "input_ids"
    """The required input."""
    labelled: str = "input_ids"
    """The input to whose tokens labels belong."""
    language_model_task: type[Task] = CausalLMTask
    """The task of a model with a language model head."""
    stacks: ClassVar[Mapping[str, tuple[str, str]]] = {"": ("", "last_hidden_state")}
    """Prefix of a stack's activations -> its prefix of "hidden_states" and "attentions" in
    transformers, and the name of its last hidden state.
    """
    normalized_states: bool = True
    """Whether the last hidden state of a stack is its output after the final norm."""

    @abc.abstractmethod
    def forward(
        self, model: Model, checkpoint: "HFCheckpoint", inputs: Arrays, key: jax.Array | None = None
    ) -> tuple[ModelOutput, Outputs]:
        """Returns the states for the heads, and the outputs that need no head.

        `key` is for dropout.
        """

    def encoder_inputs(
        self, checkpoint: "HFCheckpoint", inputs: Arrays
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Returns the ids or images, and keyword arguments for `hidden` or `encode`."""
        ids = required_input(inputs, "input_ids")
        positions, mask = positions_and_mask(checkpoint, inputs, ids)
        return ids, {"positions": positions, "mask": mask}

    def encode(
        self, model: Model, checkpoint: "HFCheckpoint", inputs: Arrays, key: jax.Array | None = None
    ) -> tuple[jax.Array, Mask]:
        """Returns the encoder's output `[B, S, D]` of an encoder-decoder, and its padding mask."""
        source, options = self.encoder_inputs(checkpoint, inputs)
        return model.encode(source, key=key, **options), self.encoder_mask(checkpoint, inputs)

    def encoder_mask(self, checkpoint: "HFCheckpoint", inputs: Arrays) -> Mask:
        """Returns the mask of the encoder's states for a decoder."""
        return self.outputs_mask(inputs.get("attention_mask"))

    def outputs_mask(self, mask: jax.Array | None) -> Mask:
        """Returns the mask of the encoder's outputs for a decoder, from `[B, S]` or None."""
        return padding_mask(mask)

    def vocab_size(self, config: ModelConfig, name: str) -> int:
        """Returns the number of ids of an input, which may be "labels"."""
        return config.vocab_size

    def ends_normalised(self, checkpoint: "HFCheckpoint", prefix: str) -> bool:
        """Returns whether the last hidden state of a stack is its normalised output."""
        return self.normalized_states and checkpoint.model_format.states_end_normalised

    def names_of_inputs(self, config: ModelConfig) -> tuple[str, ...]:
        """Returns the inputs of a model; segment ids only if it has tables for them."""
        tables = getattr(config, "type_sizes", {})
        own = (theirs for theirs, ours in SEGMENTS.items() if ours in tables)
        return tuple(sorted({*self.inputs, *own}))

    def position(self, config: ModelConfig, name: str) -> Position:
        """Returns the position scheme of the tokens of an input, which may be "labels"."""
        return config.position

    def layer_outputs(self, checkpoint: "HFCheckpoint", cache: Cache, outputs: Outputs) -> Outputs:
        """Returns the hidden states and attention weights of all layers that `cache` recorded."""
        found = {}
        for prefix, (name, output) in self.stacks.items():
            states = layer_states(cache, prefix)
            if states and self.ends_normalised(checkpoint, prefix):
                last = outputs[output]
                # OPT 350M's last state is narrower than the others and is left out.
                states = states[:-1] + [last] * (last.shape == states[0].shape)
            found[f"{name}hidden_states"] = states
            found[f"{name}attentions"] = by_layer(cache, prefix, "attn.hook_pattern")
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
    checkpoint: "HFCheckpoint", inputs: Arrays, ids: jax.Array
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
    return positions, padding_mask(mask)


def padding_mask(mask: jax.Array | None) -> Mask:
    """Returns the key mask for an attention mask `[B, S]`; None means all ones."""
    return Mask() if mask is None else KeyPadding(mask > 0)


class _Decoder(HFFamily):
    name = "decoder"

    def forward(self, model, checkpoint, inputs, key=None):
        ids = required_input(inputs, "input_ids")
        positions, mask = positions_and_mask(checkpoint, inputs, ids)
        options = {"positions": positions, "mask": mask, "type_ids": type_ids_of(inputs)}
        hidden = model.hidden(ids, key=key, **options)
        valid = _not_padding(checkpoint, ids, _valid(inputs))
        states = ModelOutput(hidden, None, model.embedding.kernel(), valid)
        return states, {"last_hidden_state": hidden}


class _Encoder(HFFamily):
    name = "encoder"
    inputs = (*HFFamily.inputs, "task_type_ids", "token_type_ids")

    def encoder_inputs(self, checkpoint, inputs):
        ids, options = super().encoder_inputs(checkpoint, inputs)
        return ids, options | {"type_ids": type_ids_of(inputs)}

    def forward(self, model, checkpoint, inputs, key=None):
        ids, options = self.encoder_inputs(checkpoint, inputs)
        hidden = model.hidden(ids, key=key, **options)
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
    """Returns the tokens, bool `[B, T]`, of which transformers' classifiers read the last one."""
    # Without a padding id they read one text at a time, so the mask determines the real tokens.
    pad_id = checkpoint.hf_config.take("pad_token_id", None)
    return valid if pad_id is None else ids != pad_id


class _EncoderDecoder(HFFamily):
    name = "encoder-decoder"
    inputs = (*_Encoder.inputs, *_OF_DECODER)
    labelled = "decoder_input_ids"
    language_model_task = Seq2SeqLMTask
    stacks: ClassVar = {
        "encoder.": ("encoder_", "encoder_last_hidden_state"),
        "decoder.": ("decoder_", "last_hidden_state"),
    }

    def forward(self, model, checkpoint, inputs, key=None):
        encoder_key, decoder_key = split(key, 2)
        memory, mask = self.encode(model, checkpoint, inputs, encoder_key)
        hidden = whole_rows(self.decode(model, checkpoint, memory, mask, inputs, decoder_key))
        outputs = {"last_hidden_state": hidden, "encoder_last_hidden_state": memory}
        return ModelOutput(hidden, hidden[:, 0], model.target_embedding.kernel()), outputs

    def decode(
        self,
        model: Model,
        checkpoint: "HFCheckpoint",
        encoder_outputs: jax.Array,
        mask: Mask,
        inputs: Arrays,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the decoder's states `[B, T, D]`; `mask` is the mask of the encoder's outputs."""
        targets = _decoder_ids(checkpoint, inputs)
        given = inputs.get("decoder_attention_mask")
        if given is None:
            task = checkpoint.architecture.task
            given = task.decoder_mask(targets, inputs, checkpoint.hf_config)
        own = {"attention_mask": given}
        if "decoder_position_ids" in inputs:
            own["position_ids"] = inputs["decoder_position_ids"]
        decoder = self.decoder_checkpoint(checkpoint)
        positions, decoder_mask = positions_and_mask(decoder, own, targets)
        options = {"encoder_mask": mask, "positions": positions, "mask": decoder_mask}
        return model.decode(targets, encoder_outputs, key=key, **options)

    def decoder_checkpoint(self, checkpoint: "HFCheckpoint") -> "HFCheckpoint":
        """Returns the checkpoint that determines how the decoder's positions are counted."""
        return checkpoint

    def position(self, config, name):
        of_decoder = name.startswith(_DECODER_INPUTS)
        return config.decoder_position if of_decoder else config.position


class _Composite(_EncoderDecoder):
    """An encoder of any family, and a decoder."""

    def __init__(self, encoder: HFFamily):
        """Takes the family of the encoder."""
        self._encoder, self.source = encoder, encoder.source
        self.inputs = (*encoder.inputs, *_OF_DECODER)

    def forward(self, model, checkpoint, inputs, key=None):
        states, outputs = super().forward(model, checkpoint, inputs, key)
        if self.source == _Waveform.source:
            # For sound, transformers returns the states after the projection for the decoder.
            memory = outputs["encoder_last_hidden_state"]
            outputs["encoder_last_hidden_state"] = model.cross_inputs(memory)
        return states, outputs

    def names_of_inputs(self, config):
        return tuple(sorted({*self._encoder.names_of_inputs(config.encoder), *_OF_DECODER}))

    def encoder_inputs(self, checkpoint, inputs):
        return self._encoder.encoder_inputs(checkpoint.part("encoder"), inputs)

    def encoder_mask(self, checkpoint, inputs):
        return self._encoder.encoder_mask(checkpoint.part("encoder"), inputs)

    def outputs_mask(self, mask):
        return self._encoder.outputs_mask(mask)

    def decoder_checkpoint(self, checkpoint):
        return checkpoint.part("decoder")

    def vocab_size(self, config, name):
        part = config.decoder if name.startswith(_DECODER_INPUTS) else config.encoder
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

    def forward(self, model, checkpoint, inputs, key=None):
        config = checkpoint.config
        images, options = self.encoder_inputs(checkpoint, inputs)
        hidden = model.hidden(images, key=key, **options)
        states = model.outputs_from(hidden, options.get("places"), options.get("real"))
        outputs = {"last_hidden_state": hidden}
        order = _order_of_patches(config, inputs)
        if order is not None:
            restore = jnp.argsort(order, axis=1)
            outputs["ids_restore"] = restore
            outputs["mask"] = (restore >= config.num_read).astype(jnp.float32)
        pools = config.class_token or config.pooler is not None
        if type(checkpoint.architecture.task) is Task and pools:
            outputs["pooler_output"] = states.pooled
        return states, outputs


def _order_of_patches(config: VisionConfig, inputs: Arrays) -> jax.Array | None:
    """Returns the order of each image's patches, visible ones first, or None to read all."""
    if config.mask_ratio is None or ("noise" not in inputs and not config.mask_ratio):
        return None
    if "noise" not in inputs:
        raise DataError(
            "inputs: noise is missing: give a number for each patch of each image; the "
            f"{config.num_read} patches with the smallest numbers are read; or load the model with "
            "mask_ratio=0.0"
        )
    return jnp.argsort(inputs["noise"], axis=1, stable=True)


class _SpectrogramPatches(_Vision):
    name = "spectrogram patches"
    inputs = ("input_values",)
    source = "input_values"

    def encoder_inputs(self, checkpoint, inputs):
        frames = required_input(inputs, "input_values")  # [B, frames, bins]
        return jnp.swapaxes(frames, 1, 2)[..., None], {}

    def names_of_inputs(self, config):
        return self.inputs


class _Waveform(HFFamily):
    name = "waveform"
    inputs = ("attention_mask", "input_values", "mask_time_indices", "sampled_negative_indices")
    source = "input_values"
    normalized_states = False

    def names_of_inputs(self, config):
        names = ["attention_mask", "input_values"]
        names += ["mask_time_indices"] * config.span_masking.has_vector
        samples = any(head.unit == "frame" for head in config.heads)
        return (*names, *["sampled_negative_indices"] * samples)

    def encoder_inputs(self, checkpoint, inputs):
        waveforms = required_input(inputs, "input_values")
        return waveforms, {"valid": _valid_frames(checkpoint.config, inputs)}

    def encoder_mask(self, checkpoint, inputs):
        valid = checkpoint.config.output_valid(_valid_frames(checkpoint.config, inputs))
        return Mask() if valid is None else KeyPadding(valid)

    def forward(self, model, checkpoint, inputs, key=None):
        # A norm over time includes padding, as in transformers.
        features = model.features(required_input(inputs, "input_values"))
        valid = _valid_frames(checkpoint.config, inputs)
        masked = inputs.get("mask_time_indices")
        states = model.outputs_of(features, valid, None if masked is None else masked > 0, key)
        outputs = {"last_hidden_state": states.hidden}
        if checkpoint.model_format.returns_features:
            outputs["extract_features"] = features
        return states, outputs


def _valid_frames(config: WaveformConfig, inputs: Arrays) -> jax.Array | None:
    """Returns the frames of real samples, bool `[B, T]`, or None if all are."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return None
    length = config.features.num_frames(inputs["input_values"].shape[1])
    return config.features.valid_frames(length, jnp.sum(mask > 0, axis=1, dtype=jnp.int32))


class _Spectrogram(HFFamily):
    name = "spectrogram"
    # Padding is not masked: in transformers the mask only affects SpecAugment.
    inputs = ("attention_mask", "input_features")
    source = "input_features"

    def encoder_inputs(self, checkpoint, inputs):
        return jnp.swapaxes(required_input(inputs, "input_features"), 1, 2), {}

    def outputs_mask(self, mask):
        return Mask()

    def forward(self, model, checkpoint, inputs, key=None):
        spectrograms, _ = self.encoder_inputs(checkpoint, inputs)
        states = model.outputs_of(spectrograms, key)
        return states, {"last_hidden_state": states.hidden}


class _DualEncoder(HFFamily):
    name = "dual encoder"
    inputs = (*_Encoder.inputs, *PATCHES, "return_loss")
    sides: ClassVar = {
        "text": ("input_ids", "text_model_output."),
        "image": ("pixel_values", "vision_model_output."),
    }
    """Field of our configuration -> the part's input, and the prefix of its outputs."""

    def names_of_inputs(self, config):
        names = set(super().names_of_inputs(config))
        others = set() if config.image.position.any_grid else set(PATCHES) - {"pixel_values"}
        return tuple(sorted(names - others))

    def forward(self, model, checkpoint, inputs, key=None):
        """Runs both encoders; with only texts or only images, leaves out the similarities."""
        if not {"input_ids", "pixel_values"} & set(inputs):
            raise DataError(
                "inputs: input_ids and pixel_values are missing: give one of them, or both"
            )
        outputs, states, vectors = {}, {}, {}
        keys = dict(zip(self.sides, split(key, len(self.sides)), strict=True))
        for name, (reads, prefix) in self.sides.items():
            if reads not in inputs:
                continue
            side = self.side(model, checkpoint, name, inputs, keys[name])
            states[name], found, projected = side
            found.setdefault("pooler_output", projected)
            vectors[name] = unit_vectors(projected)
            outputs |= {prefix + own_name: array for own_name, array in found.items()}
        outputs |= {f"{name}_embeds": array for name, array in vectors.items()}
        similarities = model.similarities(**vectors) if len(vectors) == len(self.sides) else None
        return next(iter(states.values()))._replace(similarities=similarities), outputs

    @staticmethod
    def side(
        model: Model,
        checkpoint: "HFCheckpoint",
        name: str,
        inputs: Arrays,
        key: jax.Array | None = None,
    ) -> tuple[ModelOutput, Outputs, jax.Array]:
        """Returns the states of "text" or "image", their outputs, and unnormalised vectors."""
        part, own = checkpoint.part(name), getattr(model, name)
        task = part.architecture.task
        with scope(name):
            states, found = family_of(part.config).forward(own, part, inputs, key)
        found |= task.outputs(own, states, inputs, part.hf_config)
        projected = found.pop(f"{name}_embeds", None)
        return states, found, found["pooler_output"] if projected is None else projected

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
    SpectrogramConfig: _Spectrogram(),
    SpectrogramPatchesConfig: _SpectrogramPatches(),
    VisionConfig: _Vision(),
    WaveformConfig: _Waveform(),
}
"""Type of a configuration -> its family, except for composite models."""


def family_of(config: ModelConfig) -> HFFamily:
    """Returns the family of a configuration, which for a composite depends on the encoder."""
    if isinstance(config, CompositeConfig):
        return _Composite(FAMILIES[type(config.encoder)])
    return FAMILIES[type(config)]


def recorded(
    function: Callable[..., Any], hidden_states: bool = False, attentions: bool = False
) -> Callable[..., Any]:
    """Returns a function that also returns the requested activations of all layers."""
    return with_cache(function, STATES * hidden_states + WEIGHTS * attentions, required=False)


def forward(
    model: Model,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    hidden_states: bool = False,
    attentions: bool = False,
    key: jax.Array | None = None,
) -> Outputs:
    """Computes the outputs of the model's class in transformers: "logits", "loss", ...

    On request, also "hidden_states" `[layers + 1, B, T, D]` and "attentions" `[layers, B, N, T,
    S]`. `key` is for dropout.
    """
    family = family_of(checkpoint.config)
    task = checkpoint.architecture.task
    run = recorded(family.forward, hidden_states, attentions)
    rows = task.rows(inputs, checkpoint.hf_config)
    body_key, head_key = split(key, 2)
    (states, outputs), cache = run(model, checkpoint, rows, body_key)
    outputs |= family.layer_outputs(checkpoint, cache, outputs)
    states = states._replace(key=head_key)
    return outputs | task.outputs(model, states, inputs, checkpoint.hf_config)


def _valid(inputs: Arrays) -> jax.Array | None:
    """Returns the real tokens, bool `[B, T]`, or None if all are."""
    given = inputs.get("attention_mask")
    return None if given is None else given > 0


def _decoder_ids(checkpoint: "HFCheckpoint", inputs: Arrays) -> jax.Array:
    """Returns the decoder's inputs: the given ones, or the shifted targets."""
    if "decoder_input_ids" in inputs:
        return inputs["decoder_input_ids"]
    if checkpoint.architecture.task.labels_are_decoder_targets and "labels" in inputs:
        targets = inputs["labels"]
    elif checkpoint.repeats_inputs and "input_ids" in inputs:
        targets = inputs["input_ids"]
    else:
        raise DataError("inputs: decoder_input_ids (or labels) is missing")
    return checkpoint.model_format.shift(targets, checkpoint.hf_config)
