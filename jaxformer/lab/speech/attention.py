"""Attention weights over time, pooled for long sounds."""

from collections.abc import Sequence

import numpy as np

from jaxformer.lab.attention.maps import AttentionMaps
from jaxformer.pretrained.model import Arrays, Pretrained

STEPS = 120
"""Maximum number of time steps on an axis of a map."""


def patterns(
    pretrained: Pretrained, inputs: Arrays, name: str, layers: Sequence[int]
) -> np.ndarray:
    """Returns the weights `[layers, heads, T, S]` of an activation, named with {} for the layer.

    The inputs have one row.
    """
    names = tuple(name.format(layer) for layer in layers)
    _, cache = pretrained.activations(inputs, names)
    return np.stack([np.asarray(cache[each][0], np.float32) for each in names])


def over_time(weights: np.ndarray, axis: int, edges: np.ndarray) -> np.ndarray:
    """Pools the states between edges: the mean of queries (axis -2), or the sum of keys (-1)."""
    total = np.add.reduceat(weights, edges[:-1], axis=axis)
    return total if axis == -1 else total / np.diff(edges)[:, None]


def steps_of(states: int, most: int = STEPS) -> np.ndarray:
    """Returns the edges of at most `most` steps with nearly equal numbers of states."""
    return np.linspace(0, states, min(states, most) + 1).round().astype(int)


def time_maps(
    name: str,
    weights: np.ndarray,
    layers: Sequence[int],
    seconds_per_state: float,
    states: int,
    queries: Sequence[str] | None = None,
) -> AttentionMaps:
    """Returns maps whose keys are times, and also the queries unless they are named.

    Attention to states after the first `states`, which belong to the sound, is left out.
    """
    edges = steps_of(states)
    times = [f"{edge * seconds_per_state:.2f} s" for edge in edges[:-1]]
    kept = over_time(weights[..., :states], -1, edges)
    both = queries is None
    if both:
        kept, queries = over_time(kept[..., :states, :], -2, edges), times
    numbers = tuple(layers), tuple(range(weights.shape[1]))
    return AttentionMaps(name, kept, list(queries), times, False, *numbers, times=(both, True))
