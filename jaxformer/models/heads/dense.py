"""A dense layer between the states and the output of a head."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
from flax import nnx

from jaxformer.checks import check_fields, check_types
from jaxformer.functional.feedforward import activation
from jaxformer.nn.config import SIZE_OR_NONE, TransformerConfig
from jaxformer.nn.feedforward import mlp_settings
from jaxformer.nn.layers import ActivationLayer, Linear, NormLayer, normal, optional_norm


@dataclass(frozen=True)
class Dense:
    r"""A dense layer between the states and a head's output.

    .. math:: y = \mathrm{norm}(a(x W + b))
    """

    activation: str | None
    """The nonlinearity a; None: the identity."""
    bias: bool = True
    """Whether the layer has a bias b."""
    norm: bool = False
    """Whether the model's norm is applied afterwards."""
    width: int | None = None
    """The width of y; None: that of x."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, "dense", width=SIZE_OR_NONE)
        if self.activation is not None:
            activation(self.activation)

    def output_width(self, width: int) -> int:
        """Returns the width of y for states of this width."""
        return width if self.width is None else self.width

    def build(self, key: jax.Array, config: TransformerConfig, width: int) -> "DenseLayer":
        """Declares the parameters of a layer for states of this width."""
        return DenseLayer(key, config, self, width, {"pooled": self.output_width(width)})


@dataclass(frozen=True)
class ResidualMLP:
    r"""A feed-forward layer between the states and a head's output, sized like those of the blocks.

    .. math:: y = \mathrm{norm}(x + a(x W_1 + b_1) W_2 + b_2)
    """

    def build(self, key: jax.Array, config: TransformerConfig, width: int) -> "ResidualMLPLayer":
        """Declares the parameters; `width` is that of the states."""
        return ResidualMLPLayer(key, config, width)


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
        """Declares a linear layer from states of this width, and the norm."""
        keys = jax.random.split(key)
        std = normal(config.init_std)
        self.linear = Linear(keys[0], {"embed": width}, outputs, std, bias=dense.bias)
        self.norm = optional_norm(keys[1], config.norm if dense.norm else None, *outputs.values())
        self.activation = dense.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., width] -> [..., outputs]`."""
        y = self.linear(x)
        y = y if self.activation is None else activation(self.activation)(y)
        return y if self.norm is None else self.norm(y)


class ResidualMLPLayer(nnx.Module):
    """`ResidualMLP` with its parameters."""

    def __init__(self, key: jax.Array, config: TransformerConfig, width: int):
        """Declares two linear layers and a norm; `width` is that of the states."""
        keys = jax.random.split(key, 3)
        std = normal(config.init_std)
        self.up = Linear(keys[0], {"embed": width}, {"mlp": config.mlp_dim}, std, bias=True)
        self.down = Linear(keys[1], {"mlp": config.mlp_dim}, {"embed": width}, std, bias=True)
        self.norm = NormLayer(keys[2], config.norm, width)
        self.activation = ActivationLayer(keys[0], mlp_settings(config).activation, config.mlp_dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., width] -> [..., width]`."""
        return self.norm(self.down(self.activation(self.up(x))) + x)
