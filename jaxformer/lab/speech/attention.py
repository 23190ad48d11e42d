"""Attention weights over time, which long sounds have too many of to be shown one by one."""

from collections.abc import Sequence

import numpy as np

from jaxformer.lab.attention.maps import AttentionMaps
from jaxformer.pretrained.model import Arrays, Pretrained

STEPS = 120
"""Maximum number of time steps on an axis of a map."""


def patterns(
    pretrained: Pretrained, inputs: Arrays, name: str, layers: Sequence[int]
) -> np.ndarray:
    """Returns the attention weights of some layers.

    Args:
        pretrained: The model.
        inputs: Its inputs, with one row.
        name: The name of the activation with {} for the layer.
        layers: The layers.

    Returns:
        float32 `[layers, heads, T, S]`.
    """
    names = tuple(name.format(layer) for layer in layers)
    _, cache = pretrained.activations(inputs, names)
    return np.stack([np.asarray(cache[each][0], np.float32) for each in names])


def over_time(weights: np.ndarray, axis: int, edges: np.ndarray) -> np.ndarray:
    """Joins neighbouring states: the mean of queries, or the sum of keys.

    Args:
        weights: float32 `[layers, heads, T, S]`.
        axis: -2 for queries, -1 for keys.
        edges: The first state of each step, and the state after the last.

    Returns:
        float32 with as many steps on this axis.
    """
    total = np.add.reduceat(weights, edges[:-1], axis=axis)
    if axis == -1:
        return total
    return total / np.diff(edges)[:, None]


def steps_of(states: int, most: int = STEPS) -> np.ndarray:
    """Returns the edges of at most `most` steps with nearly as many states each."""
    return np.linspace(0, states, min(states, most) + 1).round().astype(int)


def time_maps(
    name: str,
    weights: np.ndarray,
    layers: Sequence[int],
    seconds_per_state: float,
    states: int,
    queries: Sequence[str] | None = None,
) -> AttentionMaps:
    """Returns attention weights whose keys, and queries unless they are named, are times.

    Args:
        name: The kind of attention.
        weights: float32 `[layers, heads, T, S]`.
        layers: The number of each layer.
        seconds_per_state: The time from one state to the next.
        states: The states that belong to the sound; attention to others is left out.
        queries: The names of the queries; None: times.
    """
    edges = steps_of(states)
    times = [f"{edge * seconds_per_state:.2f} s" for edge in edges[:-1]]
    kept = over_time(weights[..., :states], -1, edges)
    both = queries is None
    if both:
        kept, queries = over_time(kept[..., :states, :], -2, edges), times
    numbers = tuple(layers), tuple(range(weights.shape[1]))
    return AttentionMaps(name, kept, list(queries), times, False, *numbers, times=(both, True))
