"""A transformer: input layer, stack of blocks and final norm, common to all model families."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import check_argument
from jaxformer.functional.arrays import assert_axes, assert_integers, assert_keys, on_tokens
from jaxformer.functional.dropout import split
from jaxformer.functional.masks import Mask, real_tokens
from jaxformer.functional.positions.base import NoPosition, Position
from jaxformer.nn.cache import Cache, CacheShape, Chunk
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.inputs import InputLayer
from jaxformer.nn.layers import Linear, normal, optional_norm
from jaxformer.nn.stack import Block, Stack
from jaxformer.nn.sublayer import Context

EVERYTHING = Mask()
MakeBlock = Callable[[jax.Array, TransformerConfig, Position, int | None], Block]


class Transformer(nnx.Module):
    """Input layer, stack of blocks, and a final norm if the residual arrangement needs one."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        *,
        position: Position,
        make_block: MakeBlock,
        make_first: Sequence[MakeBlock] = (),
        num_layers: int,
        width: int,
        type_sizes: Mapping[str, int] | None = None,
    ):
        """Declares the parts; `make_first` makes the first blocks that differ from the others.

        See `InputLayer` for `width` and `type_sizes`.
        """
        keys = jax.random.split(key, 4)
        self.inputs = InputLayer(keys[0], config, position, width, type_sizes)
        others = replace(config, residual=replace(config.residual, first_norm=True))
        self.schemes = _schemes(config, position)
        layers = zip(config.windows, self.schemes, strict=True)
        group = tuple(
            partial(
                make_first[place] if place < len(make_first) else make_block,
                config=others if place else config,
                position=own,
                window=window,
            )
            for place, (window, own) in enumerate(layers)
        )
        self.stack = Stack(keys[1], num_layers, group, config.layer_repeats)
        final_norm = config.norm if config.residual.final_norm else None
        self.final_norm = optional_norm(keys[2], final_norm, config.model_dim)
        axes = {"embed": config.model_dim}, {"vocab_embed": config.output_width}
        same = config.output_width == config.model_dim
        self.projection = None if same else Linear(keys[3], *axes, normal(config.init_std))
        self.encoder_width = config.encoder_width
        self.scan = config.scan_layers
        self.remat = config.remat
        self.zero_padding = config.embeddings.zero_padding

    def __call__(
        self,
        x: jax.Array,
        *,
        mask: Mask,
        positions: jax.Array | None = None,
        type_ids: Mapping[str, jax.Array] | None = None,
        encoder_outputs: jax.Array | None = None,
        encoder_mask: Mask = EVERYTHING,
        key: jax.Array | None = None,
        grids: jax.Array | None = None,
    ) -> jax.Array:
        """`[B, T, E] -> [B, T, D]`, in the dtype of `x`.

        Args:
            x: Embeddings.
            mask: The self-attention mask.
            positions: int `[B or 1, T]`; None counts from 0.
            type_ids: Ids for the type embeddings, see `InputLayer`.
            encoder_outputs: `[B, S, D]`, if the blocks have cross-attention.
            encoder_mask: The cross-attention mask.
            key: The dropout key; None in evaluation.
            grids: int `[B, 2]`: the grids of the patches of images, see `InputLayer`.

        Returns:
            The normalised states `[B, T, D]`.
        """
        sizes = assert_axes(x=(x, "B T E"))
        for name, spec in (("mask", mask), ("encoder_mask", encoder_mask)):
            check_argument(name, spec, isinstance(spec, Mask), "a mask, such as causal()")
        if encoder_outputs is not None:
            known = sizes | {"D": self.encoder_width}
            assert_axes(known, encoder_outputs=(encoder_outputs, "B S D"))
        if key is not None:
            assert_keys(key=key)
        if positions is None:
            if grids is None:
                self.inputs.position.validate_length(x.shape[1])
            positions = jnp.arange(x.shape[1])[None, :]
        input_key, stack_key = split(key, 2)
        real = real_tokens(mask) if self.zero_padding else None
        x = on_tokens(self.inputs(on_tokens(x), positions, type_ids, input_key, real, grids))
        bias = self.inputs.bias(positions)
        context = Context(
            positions, mask, bias, encoder_outputs, encoder_mask, vectors=self.inputs.vectors()
        )
        x = self.stack(x, context, stack_key, scan=self.scan, remat=self.remat)
        return self._normalised(x)

    def init_cache(
        self,
        shape: CacheShape,
        encoder_outputs: jax.Array | None = None,
        encoder_mask: Mask = EVERYTHING,
    ) -> Cache:
        """The cache before the first token.

        Args:
            shape: The size of the cache.
            encoder_outputs: `[B, S, D]`, if the blocks have cross-attention.
            encoder_mask: The cross-attention mask.

        Returns:
            A cache without tokens, but with the keys and values of the encoder outputs.
        """
        return Cache.empty(shape, self.stack.init_cache(shape, encoder_outputs), encoder_mask)

    def step(
        self,
        x: jax.Array,
        cache: Cache,
        *,
        count: jax.Array | None = None,
        lengths: jax.Array | None = None,
        positions: jax.Array | None = None,
        mask: Mask = EVERYTHING,
    ) -> tuple[jax.Array, Cache]:
        """Reads the next tokens of each row; each attends to the tokens before it and to itself.

        Args:
            x: Embeddings `[B, T, E]`.
            cache: The cache of the tokens before.
            count: int `[B]`: how many of the T tokens are real, from the first; None: all.
            lengths: int `[B]`: the length of each row, read or not, for positional schemes that
                depend on it; None: the tokens that have been read after this call.
            positions: int `[B or 1, T]`, for schemes that embed or rotate them; None: the number
                of tokens before, padding included.
            mask: A mask of the cache's slots, for tokens in it that are padding.

        Returns:
            The normalised states `[B, T, D]` in the dtype of `x`, and the cache with these tokens.
        """
        sizes = assert_axes(lengths=(cache.lengths, "B"), embedded=(x, "B T E"))
        for name, array in (("count", count), ("lengths", lengths)):
            if array is not None:
                assert_axes(sizes, **{name: (array, "B")})
                assert_integers(**{name: array})
        if count is None:
            count = jnp.full_like(cache.lengths, x.shape[1])
        chunk = Chunk(cache.lengths, count, cache.shift)
        places = chunk.positions(x.shape[1])
        positions = places if positions is None else positions
        context = Context(
            positions,
            mask,
            bias=self.inputs.bias(places, places),
            encoder_mask=cache.encoder_mask,
            chunk=chunk,
            lengths=chunk.stop if lengths is None else lengths,
        )
        x, layers = self.stack.step(self.inputs(x, positions), context, cache.layers)
        return self._normalised(x), replace(cache, lengths=chunk.stop, layers=layers)

    def changes_at(self, lengths: jax.Array) -> jax.Array | None:
        """Whether cached keys become invalid at these lengths, see `Position.changes_at`.

        Args:
            lengths: int, of any shape.

        Returns:
            bool of that shape; None if no length invalidates them.
        """
        found = (scheme.changes_at(lengths) for scheme in self.schemes)
        changes = [change for change in found if change is not None]
        return reduce(jnp.logical_or, changes) if changes else None

    def _normalised(self, x: jax.Array) -> jax.Array:
        x = x if self.final_norm is None else self.final_norm.named("ln_final", x)
        return x if self.projection is None else self.projection(x)


def _schemes(config: TransformerConfig, position: Position) -> tuple[Position, ...]:
    """The positional scheme of each layer of a group."""
    windowed = config.window_position or position
    return tuple(
        (position if window is None else windowed) if rotates else NoPosition()
        for window, rotates in config.layer_kinds
    )
