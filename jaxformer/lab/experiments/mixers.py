"""Three kinds of token mixing: attention, a recurrence (GRU) and a convolution."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.functional.attention import attention
from jaxformer.functional.masks import causal

Parameters = dict[str, jax.Array]


class Mixer(NamedTuple):
    """A layer that mixes tokens causally."""

    name: str
    init: Callable[[jax.Array, int], Parameters]
    """Initializes the parameters from a key and the width D."""
    apply: Callable[[Parameters, jax.Array], jax.Array]
    """Maps parameters and `[B, T, D]` to `[B, T, D]`."""
    work: str
    """Work as a function of the length n, the width d and the kernel size k."""
    steps: str
    """Number of sequential operations."""
    path: str
    """Maximum number of operations between two tokens."""


def gru(parameters: Parameters, x_BTD: jax.Array) -> jax.Array:
    r"""A gated recurrent unit (GRU), as in PyTorch, over the tokens of each row.

    .. math:: r = \sigma(W_r x + U_r h), \quad z = \sigma(W_z x + U_z h), \quad
              n = \tanh(W_n x + r \odot (U_n h)), \quad h' = (1 - z) \odot n + z \odot h

    The parameters are "input" and "hidden" `[D, 3 D]`, in the order r, z, n; the initial state is 0
    (Cho et al., 2014, https://arxiv.org/abs/1406.1078).
    """
    gates_TBE = jnp.moveaxis(x_BTD @ parameters["input"], 1, 0)

    def step(state_BD: jax.Array, gates_BE: jax.Array) -> tuple[jax.Array, jax.Array]:
        reset, update, new = jnp.split(gates_BE, 3, axis=-1)
        from_reset, from_update, from_new = jnp.split(state_BD @ parameters["hidden"], 3, axis=-1)
        reset = jax.nn.sigmoid(reset + from_reset)
        update = jax.nn.sigmoid(update + from_update)
        state_BD = (1 - update) * jnp.tanh(new + reset * from_new) + update * state_BD
        return state_BD, state_BD

    _, states_TBD = jax.lax.scan(step, jnp.zeros_like(x_BTD[:, 0]), gates_TBE)
    return jnp.moveaxis(states_TBD, 0, 1)


def causal_convolution(parameters: Parameters, x_BTD: jax.Array) -> jax.Array:
    r"""A convolution over the k latest tokens with a "kernel" `[k, D, D']`.

    .. math:: y_t = \sum_{i=0}^{k-1} x_{t-k+1+i} W_i, \qquad x_t = 0 \ \text{for}\ t < 0

    Gehring et al., 2017, https://arxiv.org/abs/1705.03122.
    """
    kernel = parameters["kernel"]
    return jax.lax.conv_general_dilated(
        x_BTD,
        kernel,
        window_strides=(1,),
        padding=((kernel.shape[0] - 1, 0),),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )


def self_attention(
    parameters: Parameters, x_BTD: jax.Array, *, num_heads: int, implementation: str
) -> jax.Array:
    """Causal self-attention with its "query", "key", "value" and "output" projections `[D, D]`."""
    batch, length, width = x_BTD.shape
    heads = batch, length, num_heads, width // num_heads
    query, key, value = (
        (x_BTD @ parameters[name]).reshape(heads) for name in ("query", "key", "value")
    )
    mixed = attention(query, key, value, mask=causal(), implementation=implementation)
    return mixed.reshape(x_BTD.shape) @ parameters["output"]


def mixers(num_heads: int, kernel_size: int) -> tuple[Mixer, ...]:
    """Returns the layers to compare."""

    def attend(implementation: str) -> Callable[[Parameters, jax.Array], jax.Array]:
        options = {"num_heads": num_heads, "implementation": implementation}
        return lambda parameters, x: self_attention(parameters, x, **options)

    def convolution(key: jax.Array, width: int) -> Parameters:
        return _normal(key, width * kernel_size, kernel=(kernel_size, width, width))

    square = ("n^2 d + n d^2", "O(1)", "O(1)")
    narrow = ("k n d^2", "O(1)", "O(n/k)")
    return (
        Mixer("attention, reference", _projections, attend("reference"), *square),
        Mixer("attention, blockwise", _projections, attend("blockwise"), *square),
        Mixer("GRU", _gates, gru, "n d^2", "O(n)", "O(n)"),
        Mixer(f"convolution, k = {kernel_size}", convolution, causal_convolution, *narrow),
    )


def _projections(key: jax.Array, width: int) -> Parameters:
    names = ("query", "key", "value", "output")
    return _normal(key, width, **dict.fromkeys(names, (width, width)))


def _gates(key: jax.Array, width: int) -> Parameters:
    return _normal(key, width, input=(width, 3 * width), hidden=(width, 3 * width))


def _normal(key: jax.Array, fan_in: int, /, **shapes: tuple[int, ...]) -> Parameters:
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(each, shape) / fan_in**0.5
        for each, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
