"""Which sublayers a block has, and in which order: a component of a model's configuration."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from flax import nnx

from jaxformer.checks import check_types
from jaxformer.functional.positions.base import Position
from jaxformer.nn.attention import DotProductCrossAttention
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import NormLayer
from jaxformer.nn.stack import Block
from jaxformer.nn.sublayer import CrossAttentionConfig, Sublayer, SublayerConfig

# Two or three sublayers, as all systems of the zoo have them, use the keys of a split in four.
_FEWEST_KEYS = 4


@dataclass(frozen=True)
class BlockConfig(abc.ABC):
    """Describes the blocks of a model; `build` makes one of them."""

    def __post_init__(self):
        check_types(self)

    @abc.abstractmethod
    def build(
        self,
        key: jax.Array,
        config: TransformerConfig,
        sublayers: Sequence[SublayerConfig],
        position: Position,
        window: int | None,
    ) -> Block:
        """Declares the parameters of a block.

        Args:
            key: A PRNG key for the initial values.
            config: The model's sizes and settings.
            sublayers: Those of the model: (self_attention, feed_forward), and in the decoder of an
                encoder-decoder (self_attention, cross_attention, feed_forward).
            position: The positional scheme of the layer.
            window: The sliding window of the layer; None if it has none.

        Returns:
            The block.
        """

    def products(self, config: TransformerConfig) -> int:
        """Multiply-adds per token with parameters of the block itself, without its sublayers'."""
        del config
        return 0


@dataclass(frozen=True)
class TransformerBlock(BlockConfig):
    """The sublayers around the residual stream, arranged by the model's `residual`: `Block`."""

    def sublayers(self, given: Sequence[SublayerConfig]) -> Sequence[SublayerConfig]:
        """Returns the sublayers of a block, in order; a subclass may return others.

        Args:
            given: The sublayers of the model, see `build`.

        Returns:
            The given sublayers.
        """
        return given

    def build(self, key, config, sublayers, position, window):
        sublayers = self.sublayers(sublayers)
        keys = jax.random.split(key, max(_FEWEST_KEYS, len(sublayers) + 1))
        built = [
            sublayer.build(each, config, position, window)
            for sublayer, each in zip(sublayers, keys, strict=False)
        ]
        return self.make(keys[len(sublayers)], config, built)

    def make(
        self, key: jax.Array, config: TransformerConfig, sublayers: Sequence[Sublayer]
    ) -> Block:
        """The block around built sublayers; a subclass may return another."""
        return Block(key, config, sublayers)


@dataclass(frozen=True)
class UnusedCrossAttention(TransformerBlock):
    """The blocks of a decoder that was taken from an encoder-decoder (`BartForCausalLM`).

    They keep its cross-attention, which has no encoder outputs to read, so that a file with all
    parameters can be written. These parameters do not learn.
    """

    cross_attention: CrossAttentionConfig = DotProductCrossAttention()
    """The sublayer that is kept."""

    def build(self, key, config, sublayers, position, window):
        block = super().build(key, config, sublayers, position, window)
        keys = jax.random.split(jax.random.fold_in(key, 1))
        unused = self.cross_attention.build(keys[0], config, position, window)
        block.unused = nnx.List([unused, NormLayer(keys[1], config.norm, config.model_dim)])
        for _, variable in nnx.iter_graph(block.unused):
            if isinstance(variable, nnx.Param):
                variable.set_metadata(learns=False)
        return block
