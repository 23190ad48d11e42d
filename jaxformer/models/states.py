"""Hidden states and attention weights of all layers, from the activations of a stack."""

import re
from collections.abc import Callable, Iterable, Mapping

import jax

from jaxformer.functional.activations import with_cache
from jaxformer.models.heads.base import Head

Cache = Mapping[str, jax.Array]
STATES = ("*blocks.0.hook_resid_pre", "*.hook_resid_post", "*.hook_normalized_resid_post")
"""Patterns of the activations that `layer_states` reads."""
WEIGHTS = ("*attn.hook_pattern",)
"""Patterns of the activations that hold attention weights."""


def layer_states(cache: Cache, prefix: str = "") -> list[jax.Array]:
    """Returns the input of the first layer and the output of each, `[B, T, D]`, if recorded."""
    # `cache` has the activations that match `STATES`; `prefix` is "", "encoder." or "decoder.".
    first = by_layer(cache, prefix, "hook_resid_pre")
    normalized = by_layer(cache, prefix, "hook_normalized_resid_post")
    return first[:1] + (normalized or by_layer(cache, prefix, "hook_resid_post"))


def with_layers(
    run: Callable[..., jax.Array], heads: Iterable[Head], *arguments: jax.Array | None
) -> tuple[jax.Array, list[jax.Array] | None]:
    """Returns the states that `run` gives, and those of all layers if a head mixes them."""
    if not any(getattr(head, "mixes_layers", False) for head in heads):
        return run(*arguments), None
    hidden, cache = with_cache(run, STATES, required=False)(*arguments)
    return hidden, layer_states(cache)


def by_layer(cache: Cache, prefix: str, name: str) -> list[jax.Array]:
    """Returns one activation ("attn.hook_pattern") of each layer that has it, first layer first."""
    names = re.compile(rf"{re.escape(prefix)}blocks\.(\d+)\.{re.escape(name)}")
    layers = {int(found[1]): cache[found[0]] for found in map(names.fullmatch, cache) if found}
    return [layers[number] for number in sorted(layers)]
