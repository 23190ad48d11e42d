"""A block with a convolution parallel to its sublayers."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxformer.checks import check_field
from jaxformer.functional.dropout import dropout, split
from jaxformer.functional.feedforward import activation
from jaxformer.nn.block import TransformerBlock
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, NormLayer, normal
from jaxformer.nn.residual import PostNorm
from jaxformer.nn.stack import Block, explained
from jaxformer.nn.sublayer import Context, Sublayer


class ConvolutionalBlock(Block):
    """A block, and a convolution of its input; see `ConvolutionBlock`."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        sublayers: Sequence[Sublayer],
        convolution: "ConvolutionBlock",
    ):
        """Declares the norms, and the convolution's kernel `[kernel_size, D, D]` and norm."""
        super().__init__(key, config, sublayers)
        keys = jax.random.split(jax.random.fold_in(key, 1))
        inputs = {"taps": convolution.kernel_size, "embed": config.model_dim}
        outputs = {"channels": config.model_dim}
        std = normal(config.init_std)
        self.convolution = Linear(keys[0], inputs, outputs, std, bias=True)
        self.convolution_norm = NormLayer(keys[1], config.norm, config.model_dim)
        self.activation = convolution.activation

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`; `key` is None in evaluation."""
        block_key, own_key = split(key, 2)
        of_token = context.documents(x, "first_block = ConvolutionBlock")
        with explained(self):
            convolved = self.convolution(_neighbours(x, of_token, self.convolution.inputs[0]))
        convolved = activation(self.activation)(dropout(convolved, self.dropout, own_key))
        real_BT1 = (of_token > 0)[..., None]

        def last(y):
            return jnp.where(real_BT1, self.convolution_norm(y + convolved), 0)

        return self._arranged(x, self._on_rows(context), block_key, last)


@dataclass(frozen=True)
class ConvolutionBlock(TransformerBlock):
    r"""A block to whose output a convolution of its input is added (DeBERTa 2).

    .. math:: y = \mathrm{norm}(\mathrm{block}(x) + f(W * x))

    The kernel reads only tokens of one document, and the states of padding become zeros.

    References:
        He et al., DeBERTa, 2021 (https://arxiv.org/abs/2006.03654), appendix A.5.
    """

    kernel_size: int = 3
    """Tokens that the kernel spans, an odd number."""
    activation: str = "tanh"
    """The nonlinearity f."""

    def __post_init__(self):
        super().__post_init__()
        odd = self.kernel_size >= 1 and self.kernel_size % 2 == 1
        check_field(self, "kernel_size", odd, "an odd number, at least 1")
        activation(self.activation)

    def make(self, key, config, sublayers):
        after = isinstance(config.residual, PostNorm)
        check_field(config, "residual", after, f"PostNorm() with {self}", "model")
        return ConvolutionalBlock(key, config, sublayers, self)

    def products(self, config):
        return self.kernel_size * config.model_dim**2


def _neighbours(x_BTD: jax.Array, documents_BT: jax.Array, count: int) -> jax.Array:
    """Each token between its neighbours, `[B, T, count, D]`; zeros where there are none."""
    length, reach = x_BTD.shape[1], count // 2

    def padded(x):
        return jnp.pad(x, [(0, 0), (reach, reach)] + [(0, 0)] * (x.ndim - 2))

    x_BSD = padded(x_BTD)
    documents_BS = padded(documents_BT)
    found = []
    for start in range(count):
        same_BT = documents_BS[:, start : start + length] == documents_BT
        seen_BT1 = (same_BT & (documents_BT > 0))[..., None]
        found.append(jnp.where(seen_BT1, x_BSD[:, start : start + length], 0))
    return jnp.stack(found, axis=2)
