"""The position-wise feed-forward layer."""

from dataclasses import dataclass

import jax

from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.feedforward import Activation, ActivationName, feed_forward
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import ActivationLayer, Linear, normal, value_of
from jaxformer.nn.sublayer import Context, FeedForwardConfig, Sublayer, settings_of


class FeedForward(Sublayer):
    """`down(act(up(x)))`, or gated: `down(act(gate(x)) * up(x))` (Shazeer, 2020)."""

    name = "mlp"
    joins = ("gate", "up")

    def __init__(self, key: jax.Array, config: TransformerConfig, settings: "MLP | None" = None):
        """Declares the projections; `settings` None are those of the model."""
        settings = mlp_settings(config) if settings is None else settings
        keys = jax.random.split(key, 3)
        model = {"embed": config.model_dim}
        hidden = {"mlp": config.mlp_dim}
        std, bias = normal(config.init_std), settings.bias
        self.up = Linear(keys[0], model, hidden, std, bias=bias)
        self.gate = Linear(keys[1], model, hidden, std, bias=bias) if settings.gated else None
        self.down = Linear(keys[2], hidden, model, normal(config.output_std), bias=bias)
        self.activation = ActivationLayer(keys[0], settings.activation, config.mlp_dim)

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `context` and `key` are unused."""
        up, gate, down = self.up, self.gate, self.down
        assert_axes(x=(x, f"... {up.inputs[0]}"))
        return feed_forward(
            x,
            up.kernel.get_value(),
            down.kernel.get_value(),
            activation=self.activation,
            gate=None if gate is None else gate.kernel.get_value(),
            up_bias=value_of(up.bias),
            gate_bias=None if gate is None else value_of(gate.bias),
            down_bias=value_of(down.bias),
        )


@dataclass(frozen=True, kw_only=True)
class MLP(FeedForwardConfig):
    """The position-wise feed-forward layer, gated or not: `FeedForward`."""

    activation: ActivationName | Activation = "silu"
    """The nonlinearity: a name, or an Activation of your own."""
    gated: bool = True
    """Whether there is a gate: SwiGLU, GeGLU, ReGLU by activation."""
    bias: bool = False
    """Biases of its linear layers."""

    def build(self, key, config, position, window):
        del position, window
        return FeedForward(key, config, self)


def mlp_settings(config: TransformerConfig) -> MLP:
    """The model's `feed_forward`, or the default of its family if that is another class."""
    return settings_of(config, "feed_forward", MLP)
