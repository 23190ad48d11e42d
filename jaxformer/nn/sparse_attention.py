"""Self-attention to some tokens: BigBird's blocks, and LongT5's windows with global tokens."""

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxformer.checks import at_least, check_fields
from jaxformer.errors import ConfigError
from jaxformer.functional.attention.global_tokens import block_numbers, block_sums
from jaxformer.functional.masks import (
    Band,
    KeyPadding,
    KeyRange,
    Mask,
    Segments,
    block_sparse,
    terms_of,
)
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.sparse import RepeatedBlock
from jaxformer.io.serialization import summary
from jaxformer.nn.attention import Attention, DotProductAttention, SelfAttention
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import NormLayer
from jaxformer.nn.sublayer import Context

_NEAR_BLOCKS = 5
"""The first, the last, and three in a window."""


class BlockSparseSelfAttention(SelfAttention):
    """Attention to a token's own block, the two next to it, the first and the last block."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        window: int | None,
        sparse: "BlockSparseAttention",
    ):
        """Declares the attention; see `SelfAttention` and `BlockSparseAttention`."""
        super().__init__(key, config, position, window, partial(Attention, settings=sparse))
        self.sparse = sparse

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        length, size = x.shape[1], self.sparse.block_size
        if length <= self.sparse.longest_full:
            return super().__call__(x, context, key)
        if context.bias is not None:
            raise ConfigError(
                f"model.self_attention = {summary(self.sparse)}: must be another with a position "
                "or relative_position that adds biases; or use Learned, Sinusoidal or RoPE "
                "positions"
            )
        times, bias = 1 + self.sparse.num_random_blocks, None
        if times > 1:
            repeated = RepeatedBlock(size, -(-length // size))
            bias = repeated.bias(times, length, self.attention.num_heads)
        # Padding does not attend to anything either, as in transformers.
        mask = _without_padding(context.mask) & block_sparse(length, size)
        return super().__call__(x, replace(context, mask=mask, bias=bias), key)


@dataclass(frozen=True)
class BlockSparseAttention(DotProductAttention):
    """BigBird's attention in blocks: to the same block, adjacent ones, the first and the last.

    The first and the last block attend to all tokens. In short rows, all attend to all. Instead of
    random blocks, the first block is counted that many more times, as in transformers' evaluation.

    References:
        Zaheer et al., Big Bird (https://arxiv.org/abs/2007.14062).
    """

    block_size: int = 64
    """Tokens of a block."""
    num_random_blocks: int = 3
    """The number of additional times that the first block is counted."""
    bias: bool = field(default=True, kw_only=True)
    """Biases of the query, key and value projections."""
    output_bias: bool = field(default=True, kw_only=True)
    """Bias of the output projection."""
    dropout: float = field(default=0.1, kw_only=True)
    """Dropout of the probabilities."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "self_attention", block_size=at_least(1), num_random_blocks=at_least(0))

    @property
    def longest_full(self) -> int:
        """The longest rows in which all tokens attend to all."""
        return (_NEAR_BLOCKS + 2 * self.num_random_blocks) * self.block_size

    def for_decoder(self):
        return self.plain()

    def build(self, key, config, position, window):
        _check_encoder(self, config)
        return BlockSparseSelfAttention(key, config, position, window, self)


class TransientGlobalSelfAttention(SelfAttention):
    """Attention to a window, and to tokens that summarize blocks of the row."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        window: int,
        settings: "TransientGlobalAttention",
    ):
        """Declares the attention and the norm of the global tokens; see `SelfAttention`."""
        super().__init__(key, config, position, window, partial(Attention, settings=settings))
        self.global_norm = NormLayer(jax.random.fold_in(key, 2), config.norm, config.model_dim)
        self.block_size = settings.block_size

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        size = self.block_size
        count = x.shape[1] // size
        if not count:
            return super().__call__(x, context, key)
        segments = context.documents(x, "self_attention = TransientGlobalAttention")
        sums, documents = block_sums(x, segments, size)
        positions = context.positions
        bias = self._bias(context)
        if bias is not None:
            numbers = block_numbers(segments, size)
            bias = self.attention.position.with_global_keys(bias, numbers, count, size)
        reach = self.window - 1
        local = Band(before=reach, after=reach, query_offset=count) | KeyRange(0, count)
        starts = positions[:, : count * size : size]
        return self.attention(
            x,
            kv=jnp.concatenate([self.global_norm(sums), x], axis=1),
            mask=local & Segments(segments, jnp.concatenate([documents, segments], axis=1)),
            positions=positions,
            kv_positions=jnp.concatenate([starts, positions], axis=1),
            bias=bias,
            factor=self.attention.depth_factor(context),
            key=key,
        )


@dataclass(frozen=True)
class TransientGlobalAttention(DotProductAttention):
    """LongT5's attention to a window and to global tokens: normalised sums of blocks of tokens.

    Layers without a window have plain attention.

    References:
        Guo et al., LongT5 (https://arxiv.org/abs/2112.07916), section 3.2.2.
    """

    block_size: int = 16
    """Tokens that one global token summarizes."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "self_attention", block_size=at_least(1))

    def for_decoder(self):
        return self.plain()

    def build(self, key, config, position, window):
        if window is None:
            return super().build(key, config, position, window)
        _check_encoder(self, config)
        return TransientGlobalSelfAttention(key, config, position, window, self)


def _check_encoder(sublayer: DotProductAttention, config: TransformerConfig) -> None:
    if not config.windows_ahead:
        raise ConfigError(
            f"model.self_attention = {summary(sublayer)}: must be another in a model that is not "
            "an encoder of text, such as a decoder, whose tokens would see later ones; use "
            "DotProductAttention()"
        )


def _without_padding(mask: Mask) -> Mask:
    """The mask where padding does not attend to anything."""
    found = Mask()
    for term in terms_of(mask):
        if isinstance(term, KeyPadding):
            real = term.valid.astype(jnp.int32)
            term = Segments(real, real)
        found &= term
    return found
