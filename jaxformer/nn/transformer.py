"""A column of blocks, from embeddings to normalised hidden states: what all families have."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.errors import check_argument
from jaxformer.functional.assertions import assert_axes, assert_keys
from jaxformer.functional.dropout import split
from jaxformer.functional.masks import Mask
from jaxformer.functional.positions.base import Position
from jaxformer.nn.attention import CrossAttention, SelfAttention
from jaxformer.nn.block import Block
from jaxformer.nn.cache import CacheShape, Span
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.context import Context
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.inputs import InputLayer
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import optional_norm
from jaxformer.nn.parameter import normal
from jaxformer.nn.stack import Stack
from jaxformer.nn.sublayer import Cache

EVERYTHING = Mask()
MakeBlock = Callable[[jax.Array, TransformerConfig, Position, int | None], Block]


class Transformer(nnx.Module):
    """Input layer, stack of blocks, final norm where the residual arrangement wants one."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        *,
        position: Position,
        make_block: MakeBlock,
        num_layers: int,
        width: int,
        kinds: Mapping[str, int] | None = None,
    ):
        """Declares the parts; `width` and `kinds` are those of `InputLayer`."""
        keys = jax.random.split(key, 3)
        self.inputs = InputLayer(keys[0], config, position, width, kinds)
        others = replace(config, first_norm=True)
        group = tuple(
            partial(
                make_block,
                config=others if place else config,
                position=_position(config, position, window),
                window=window,
            )
            for place, window in enumerate(config.windows)
        )
        self.stack = Stack(keys[1], num_layers, group, config.layer_repeats)
        final_norm = config.norm if config.residual.final_norm else None
        self.final_norm = optional_norm(keys[2], final_norm, config.model_dim)
        model, outputs = {"embed": config.model_dim}, {"vocab_embed": config.output_width}
        # The other keys, and with them all initial values, are those of models without it.
        projection = Linear(jax.random.fold_in(key, 3), model, outputs, normal(config.init_std))
        self.projection = None if config.output_width == config.model_dim else projection
        self.model_dim = config.model_dim
        self.scan, self.remat = config.scan_layers, config.remat
        self.schemes = tuple(_position(config, position, window) for window in config.windows)

    def __call__(
        self,
        x: jax.Array,
        *,
        mask: Mask,
        positions: jax.Array | None = None,
        kinds: Mapping[str, jax.Array] | None = None,
        memory: jax.Array | None = None,
        memory_mask: Mask = EVERYTHING,
        key: jax.Array | None = None,
        capture: list[jax.Array] | None = None,
    ) -> jax.Array:
        """`[B, T, E] -> [B, T, D]`, in the dtype of `x`.

        Args:
            x: Embeddings.
            mask: Who sees whom.
            positions: int `[B or 1, T]`; None counts from 0.
            kinds: Ids for the tables of kinds, see `InputLayer`.
            memory: `[B, S, D]`, an encoder's output, where the blocks read one.
            memory_mask: Which places of the memory each token sees.
            key: The dropout key; None in evaluation.
            capture: Receives what goes into the first block and what comes out of each; None in
                training.
        """
        sizes = assert_axes(x=(x, "B T E"))
        for name, spec in (("mask", mask), ("memory_mask", memory_mask)):
            check_argument(name, spec, isinstance(spec, Mask), "a mask, such as causal()")
        if memory is not None:
            assert_axes(sizes | {"D": self.model_dim}, memory=(memory, "B S D"))
        if key is not None:
            assert_keys(key=key)
        if positions is None:
            self.inputs.position.validate_length(x.shape[1])
            positions = jnp.arange(x.shape[1])[None, :]
        input_key, stack_key = split(key, 2)
        x = self.inputs(x, positions, kinds, input_key)
        context = Context(positions, mask, self.inputs.bias(positions), memory, memory_mask)
        if capture is None:
            x = self.stack(x, context, stack_key, scan=self.scan, remat=self.remat)
            return self._normalised(x)
        capture += [x, *self.stack.states(x, context)]
        return self._normalised(capture[-1])

    def changes_at(self, lengths: jax.Array) -> jax.Array | None:
        """Whether a token more changes what the blocks make of those before it.

        Args:
            lengths: int, of any shape: with that token.

        Returns:
            bool of that shape; None: never. See `Position.changes_at`.
        """
        found = (scheme.changes_at(lengths) for scheme in self.schemes)
        changes = [change for change in found if change is not None]
        return reduce(jnp.logical_or, changes) if changes else None

    def start(self, shape: CacheShape, memory: jax.Array | None = None) -> list[list[Cache]]:
        """What the blocks keep before the first token.

        Args:
            shape: How much is to be kept.
            memory: `[B, S, D]`, an encoder's output, where the blocks read one.
        """
        return self.stack.start(shape, memory)

    def extend(
        self,
        x: jax.Array,
        caches: list[list[Cache]],
        *,
        span: Span,
        lengths: jax.Array,
        memory_mask: Mask = EVERYTHING,
    ) -> tuple[jax.Array, list[list[Cache]]]:
        """Reads the next tokens of each row; each sees those before it and itself.

        Args:
            x: Embeddings `[B, T, E]`.
            caches: What is kept of the tokens before.
            span: Which tokens these are. The first of a row stands at position 0.
            lengths: int `[B]`: how many tokens each row has or will have, for the schemes whose
                frequencies depend on it.
            memory_mask: Which places of the memory each token sees.

        Returns:
            `[B, T, D]` in the dtype of `x`, and what is kept after them.
        """
        positions = span.places(x.shape[1])
        x = self.inputs(x, positions)
        context = Context(
            positions,
            bias=self.inputs.bias(positions, positions),
            memory_mask=memory_mask,
            span=span,
            lengths=lengths,
        )
        x, caches = self.stack.extend(x, context, caches)
        return self._normalised(x), caches

    def _normalised(self, x: jax.Array) -> jax.Array:
        x = x if self.final_norm is None else self.final_norm(x)
        return x if self.projection is None else self.projection(x)


def _position(config: TransformerConfig, position: Position, window: int | None) -> Position:
    """The scheme of a layer with this window."""
    own = config.window_position
    return position if window is None or own is None else own


def self_block(
    key: jax.Array, config: TransformerConfig, position: Position, window: int | None
) -> Block:
    """A block of (self-attention, feed-forward): encoders, and decoders that stand alone."""
    keys = jax.random.split(key, 3)
    attention = SelfAttention(keys[0], config, position, window)
    return Block(keys[2], config, (attention, FeedForward(keys[1], config)))


def cross_block(
    key: jax.Array, config: TransformerConfig, position: Position, window: int | None
) -> Block:
    """A block of (self-attention, cross-attention, feed-forward): decoders with an encoder."""
    keys = jax.random.split(key, 4)
    sublayers = (
        SelfAttention(keys[0], config, position, window),
        CrossAttention(keys[1], config),
        FeedForward(keys[2], config),
    )
    return Block(keys[3], config, sublayers)
