"""Parts of a forward pass with the names of transformers: the encoder, the decoder, a decode step.

Pure functions of a module, beside `families.forward`, which runs the whole of it.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxformer.functional.activations import Hook, with_cache
from jaxformer.functional.masks import KeyPadding
from jaxformer.hub.families import Outputs, family_of, padding_mask
from jaxformer.hub.states import STATES, WEIGHTS
from jaxformer.hub.tasks.classes import Arrays
from jaxformer.models.decoder import GenerativeModel
from jaxformer.models.parameters import AbstractModel
from jaxformer.nn.cache import Cache, CacheShape, EncoderCache

if TYPE_CHECKING:
    from jaxformer.hub.checkpoint import HFCheckpoint


def encode(
    model: GenerativeModel,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    hidden_states: bool = False,
    attentions: bool = False,
    key: jax.Array | None = None,
) -> Outputs:
    """Returns the outputs of an encoder-decoder's encoder: "encoder_last_hidden_state", ..."""
    family = family_of(checkpoint.config)
    names = STATES * hidden_states + WEIGHTS * attentions
    run = with_cache(family.encode, names, required=False)
    (hidden, _), cache = run(model, checkpoint, inputs, key)
    found = {"encoder_last_hidden_state": hidden}
    return found | family.layer_outputs(checkpoint, cache, found)


def decode(
    model: GenerativeModel,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    encoder_outputs: jax.Array,
    encoder_mask: jax.Array | None,
    *,
    hidden_states: bool = False,
    attentions: bool = False,
    key: jax.Array | None = None,
) -> Outputs:
    """Returns the outputs of an encoder-decoder's decoder: "last_hidden_state", "logits", ...

    Args:
        model: The model.
        checkpoint: Its description.
        inputs: "decoder_input_ids", "decoder_attention_mask", "decoder_position_ids".
        encoder_outputs: `[B, S, D]`.
        encoder_mask: `[B, S]`, 1 at real tokens; None: all are.
        hidden_states: Whether to add those of all layers.
        attentions: Whether to add the attention probabilities.
        key: The dropout key.
    """
    family = family_of(checkpoint.config)
    names = STATES * hidden_states + WEIGHTS * attentions
    run = with_cache(family.decode, names, required=False)
    mask = padding_mask(encoder_mask)
    hidden, cache = run(model, checkpoint, encoder_outputs, mask, inputs, key)
    found = {"last_hidden_state": hidden}
    return _scored(model, found | family.layer_outputs(checkpoint, cache, found))


def empty_cache(
    abstract_model: AbstractModel, shape: CacheShape, encoder_outputs: jax.Array | None = None
) -> Cache:
    """Returns the cache of a model without weights, before the first token, for `step`."""

    def made(parameters, encoder_outputs):
        return abstract_model.module(parameters).init_cache(shape, encoder_outputs)

    found = jax.eval_shape(made, abstract_model.shapes, encoder_outputs)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found)


def step(
    model: GenerativeModel,
    inputs: Arrays,
    cache: Cache,
    encoder_outputs: jax.Array | None = None,
    encoder_mask: jax.Array | None = None,
) -> tuple[Outputs, Cache]:
    """Returns the outputs for the next tokens of each row, and the cache with them.

    Args:
        model: The model.
        inputs: "input_ids" `[B, T]`; "position_ids" `[B, T]`; "attention_mask" `[B, C]` or
            narrower, of all slots of the cache, 0 at padding.
        cache: That of `empty_cache`, or of the step before.
        encoder_outputs: `[B, S, D]`, for cross-attention.
        encoder_mask: `[B, S]`; None: all are real.
    """
    rows, _, capacity, _ = jax.tree.leaves(cache.layers)[0].shape
    if encoder_outputs is not None:
        storage = str(jnp.dtype(model.dtype))
        shape = CacheShape(rows, capacity=capacity, chunk=capacity, storage=storage)
        fresh = model.init_cache(shape, encoder_outputs, padding_mask(encoder_mask))
        pairs = zip(fresh.layers, cache.layers, strict=True)
        layers = [[_read(*each) for each in zip(*pair, strict=True)] for pair in pairs]
        cache = replace(cache, layers=layers, encoder_mask=fresh.encoder_mask)
    options = {"positions": inputs.get("position_ids")}
    if (real := inputs.get("attention_mask")) is not None:
        missing = ((0, 0), (0, capacity - real.shape[1]))
        options["mask"] = KeyPadding(jnp.pad(real, missing, constant_values=1) > 0)
    hidden, cache = model.step(inputs["input_ids"], cache, **options)
    return _scored(model, {"last_hidden_state": hidden}), cache


def head_hooks(head_mask: jax.Array | None) -> Mapping[str, Hook]:
    """Returns the hooks that multiply the attention of each layer and head by `[L, N]`."""
    if head_mask is None:
        return {}

    def scaled(weights, factors):
        return weights * factors[None, :, None, None].astype(weights.dtype)

    return {
        f"blocks.{layer}.attn.hook_pattern": partial(scaled, factors=factors)
        for layer, factors in enumerate(head_mask)
    }


def _read(new, old):
    """The keys and values of the encoder's outputs, computed anew, or those of earlier tokens."""
    return new if isinstance(new, EncoderCache) else old


def _scored(model: GenerativeModel, outputs: Outputs) -> Outputs:
    if "language_model" in model.heads:
        outputs["logits"] = model.logits(outputs["last_hidden_state"])
    return outputs
