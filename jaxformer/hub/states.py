"""Hidden states and attention weights of all layers, from the activations of a stack."""

import re
from collections.abc import Mapping

import jax

Cache = Mapping[str, jax.Array]
STATES = ("*blocks.0.hook_resid_pre", "*.hook_resid_post", "*.hook_normalized_resid_post")
"""The activations of which `layer_states` makes the hidden states."""
WEIGHTS = ("*attn.hook_pattern",)
"""The activations that are the attention weights."""


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
