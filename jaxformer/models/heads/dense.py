"""A dense layer between the states and the output of a head."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
from flax import nnx

from jaxformer.checks import check_types
from jaxformer.functional.feedforward import activation
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, normal, optional_norm


@dataclass(frozen=True)
class Dense:
    r"""A layer between the states and a head's output, of the width that the output reads.

    .. math:: y = \mathrm{norm}(a(x W + b))
    """

    activation: str
    """The nonlinearity a."""
    bias: bool = True
    """Whether b is there."""
    norm: bool = False
    """Whether the model's norm follows."""

    def __post_init__(self):
        check_types(self)
        activation(self.activation)


class DenseLayer(nnx.Module):
    """`Dense` with its parameters."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        dense: Dense,
        width: int,
        outputs: Mapping[str, int],
    ):
        """Declares the linear layer and the norm.

        Args:
            key: A PRNG key for the initial values.
            config: The model's configuration.
            dense: What the layer is.
            width: That of the states.
            outputs: The logical axis of its output and its width.
        """
        keys, std = jax.random.split(key), normal(config.init_std)
        self.linear = Linear(keys[0], {"embed": width}, outputs, std, bias=dense.bias)
        self.norm = optional_norm(keys[1], config.norm if dense.norm else None, *outputs.values())
        self.activation = dense.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., width] -> [..., outputs]`."""
        y = activation(self.activation)(self.linear(x))
        return y if self.norm is None else self.norm(y)
