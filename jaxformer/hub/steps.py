"""Forward passes and their parts, named as in transformers: the encoder, a decode step, ...

Each is a pure function of a module, its description and arrays. `key` is for dropout; the options
`hidden_states` and `attentions` add those of all layers.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxformer.distributed.sharding import on_rows
from jaxformer.functional.activations import Hook, with_hooks
from jaxformer.functional.masks import KeyPadding
from jaxformer.hub import families
from jaxformer.hub.families import Outputs
from jaxformer.hub.tasks.classes import Arrays
from jaxformer.models.decoder import GenerativeModel
from jaxformer.models.model import Model
from jaxformer.models.parameters import AbstractModel
from jaxformer.nn.cache import Cache, CacheShape, EncoderCache

if TYPE_CHECKING:
    from jaxformer.hub.checkpoint import HFCheckpoint


def forward(
    model: Model,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    key: jax.Array | None = None,
    **options: bool,
) -> Outputs:
    """Returns the outputs of `families.forward`; inputs may include a "head_mask" `[L, N]`."""
    arrays = {name: x for name, x in inputs.items() if name != "head_mask"}
    head_mask = inputs.get("head_mask")
    run = with_hooks(families.forward, _head_hooks(head_mask))
    found = run(model, checkpoint, on_rows(arrays), key=key, **options)
    if head_mask is not None and "attentions" in found:
        found["attentions"] *= head_mask[:, None, :, None, None]
    return found


def features(
    side: str,
    model: Model,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    key: jax.Array | None = None,
) -> jax.Array:
    """Returns a dual encoder's unnormalised vectors `[B, D]`; `side` is "text" or "image"."""
    return families.family_of(checkpoint.config).side(model, checkpoint, side, inputs, key)[2]


def encode(
    model: Model,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    key: jax.Array | None = None,
    **options: bool,
) -> Outputs:
    """Returns the outputs of the encoder: "encoder_last_hidden_state", ..."""
    family = families.family_of(checkpoint.config)
    (hidden, _), cache = families.recorded(family.encode, **options)(model, checkpoint, inputs, key)
    found = {"encoder_last_hidden_state": hidden}
    return found | family.layer_outputs(checkpoint, cache, found)


def decode(
    model: GenerativeModel,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    key: jax.Array | None = None,
    **options: bool,
) -> Outputs:
    """Returns the outputs of an encoder-decoder's decoder: "last_hidden_state", "logits", ...

    Inputs are "decoder_input_ids", "decoder_attention_mask", "decoder_position_ids",
    "encoder_outputs" `[B, S, D]` and "encoder_attention_mask" `[B, S]`.
    """
    family = families.family_of(checkpoint.config)
    mask = family.outputs_mask(inputs.get("encoder_attention_mask"))
    run = families.recorded(family.decode, **options)
    hidden, cache = run(model, checkpoint, inputs["encoder_outputs"], mask, inputs, key)
    found = {"last_hidden_state": hidden}
    return _scored(model, found | family.layer_outputs(checkpoint, cache, found))


def empty_cache(
    abstract_model: AbstractModel, shape: CacheShape, encoder_outputs: jax.Array | None = None
) -> Cache:
    """Returns an empty cache for `step`, from a model without weights."""

    def made(parameters, encoder_outputs):
        return abstract_model.module(parameters).init_cache(shape, encoder_outputs)

    found = jax.eval_shape(made, abstract_model.shapes, encoder_outputs)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found)


def step(
    model: GenerativeModel,
    checkpoint: "HFCheckpoint",
    inputs: Arrays,
    *,
    key: jax.Array | None = None,
    **options: bool,
) -> Outputs:
    """Returns the outputs for the next tokens of each row, with the updated "past_key_values".

    Inputs are "input_ids" and "position_ids" `[B, T]`; "attention_mask" `[B, C]` or narrower, over
    the slots of the cache, 0 at padding; "past_key_values", from `empty_cache` or the previous
    step; for cross-attention "encoder_outputs" `[B, S, D]` and "encoder_attention_mask" `[B, S]`. A
    step has no dropout.
    """
    family = families.family_of(checkpoint.config)
    cache = inputs["past_key_values"]
    rows, _, capacity, _ = jax.tree.leaves(cache.layers)[0].shape
    if (encoder_outputs := inputs.get("encoder_outputs")) is not None:
        storage = str(jnp.dtype(model.dtype))
        shape = CacheShape(rows, capacity=capacity, chunk=capacity, storage=storage)
        mask = family.outputs_mask(inputs.get("encoder_attention_mask"))
        fresh = model.init_cache(shape, encoder_outputs, mask)
        pairs = zip(fresh.layers, cache.layers, strict=True)
        # Keys and values of the encoder's outputs are recomputed.
        layers = [
            [new if isinstance(new, EncoderCache) else old for new, old in zip(*pair, strict=True)]
            for pair in pairs
        ]
        cache = replace(cache, layers=layers, encoder_mask=fresh.encoder_mask)
    given = {"positions": inputs.get("position_ids")}
    if (real := inputs.get("attention_mask")) is not None:
        missing = ((0, 0), (0, capacity - real.shape[1]))
        given["mask"] = KeyPadding(jnp.pad(real, missing, constant_values=1) > 0)
    run = families.recorded(model.step, **options)
    (hidden, cache), recorded = run(inputs["input_ids"], cache, **given)
    found = {"last_hidden_state": hidden, "past_key_values": cache}
    return _scored(model, found | family.layer_outputs(checkpoint, recorded, found))


def _head_hooks(head_mask: jax.Array | None) -> Mapping[str, Hook]:
    """Returns hooks that multiply the attention of each layer and head by `[L, N]`."""
    if head_mask is None:
        return {}

    def scaled(weights, factors):
        return weights * factors[None, :, None, None].astype(weights.dtype)

    return {
        f"blocks.{layer}.attn.hook_pattern": partial(scaled, factors=factors)
        for layer, factors in enumerate(head_mask)
    }


def _scored(model: GenerativeModel, outputs: Outputs) -> Outputs:
    if "language_model" in model.heads:
        outputs["logits"] = model.logits(outputs["last_hidden_state"])
    return outputs
