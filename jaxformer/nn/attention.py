"""Multi-head attention: the projections, and the two sublayers that use them."""
# long: an attention, its settings and its two sublayers are one component.

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import POSITIVE, RATE, check_fields, optional
from jaxformer.functional.activations import saveable, tap
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_integers,
    check_result,
    merge_rows,
)
from jaxformer.functional.attention.api import attention
from jaxformer.functional.attention.distances import DistanceTerms
from jaxformer.functional.masks import Band, Mask, PositionMask
from jaxformer.functional.norms import Norm
from jaxformer.functional.positions.base import NoPosition, Position
from jaxformer.functional.positions.bias import Bias
from jaxformer.nn.cache import CacheShape, EncoderCache, KeyValueCache
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, head_norm, normal, parameter, value_of
from jaxformer.nn.sublayer import (
    Context,
    CrossAttentionConfig,
    SelfAttentionConfig,
    Sublayer,
    settings_of,
)


class Attention(nnx.Module):
    """Query, key, value and output projections around `functional.attention`."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        kv_dim: int | None = None,
        settings: "DotProductAttention | None" = None,
    ):
        """Declares the projections, and the norms of queries and keys if there are any.

        Args:
            key: A PRNG key for the initial values.
            config: The sizes.
            position: The positional scheme of queries and keys.
            kv_dim: The width of what keys and values are projected from; None: model_dim.
            settings: The settings of attention; None: those of the model's `self_attention`.
        """
        settings = settings or settings_of(config, "self_attention", DotProductAttention)
        keys = jax.random.split(key, 6)
        model = {"embed": config.model_dim}
        head = {"head_dim": config.head_width}
        source = {"embed": config.model_dim if kv_dim is None else kv_dim}
        of_values = {"head_dim": config.value_width}
        heads = {"heads": config.num_heads}
        kv_heads = {"kv_heads": config.kv_heads}
        std = normal(config.init_std)
        output_std = normal(config.output_std)
        bias = settings.bias
        self.query = Linear(keys[0], model, heads | head, std, bias=bias)
        self.key = Linear(keys[1], source, kv_heads | head, std, bias=bias and settings.key_bias)
        self.value = Linear(keys[2], source, kv_heads | of_values, std, bias=bias)
        self.output = Linear(
            keys[3], heads | of_values, model, output_std, bias=settings.output_bias
        )
        norm = settings.query_key_norm, config.head_width, settings.query_key_norm_over
        self.query_norm = head_norm(keys[4], *norm, heads)
        self.key_norm = head_norm(keys[5], *norm, kv_heads)
        self.position = position
        self.num_heads = config.num_heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_width
        self.value_dim = config.value_width
        self.scale = settings.scale
        self.scale_by_depth = settings.scale_by_depth
        self.softcap = settings.softcap
        # Initially about as much as one key.
        sinks = (config.num_heads,), ("heads",), std
        self.sinks = parameter(jax.random.fold_in(key, 6), *sinks) if settings.sinks else None
        self.clip = settings.clip
        self.dropout = settings.dropout
        self.implementation = config.attention

    def __call__(
        self,
        x: jax.Array,
        *,
        kv: jax.Array | None = None,
        mask: Mask,
        positions: jax.Array,
        kv_positions: jax.Array | None = None,
        bias: Bias | None = None,
        distances: DistanceTerms | None = None,
        factor: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Attends from `x` to `kv`.

        Args:
            x: `[B, T, D]`.
            kv: `[B, S, D]`, or of the width `kv_dim`; None: `x` itself.
            mask: A spec of `functional.masks`.
            positions: int `[B or 1, T]`: the positions of the queries.
            kv_positions: int `[B or 1, S]`: the positions of the keys; None: those of the queries.
            bias: The positional scheme's attention bias.
            distances: What distances add to the products of queries and keys.
            factor: Multiplies the scaled logits before the bias; None: 1.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]`.
        """
        kv = x if kv is None else kv
        width = {"D": self.query.inputs[0]}
        sizes = assert_axes(width, x=(x, "B T D"), positions=(positions, "B/1 T"))
        sizes = assert_axes(sizes | {"D": self.key.inputs[0]}, kv=(kv, "B S D"))
        if kv_positions is None:
            kv_positions = positions
        else:
            assert_axes(sizes, kv_positions=(kv_positions, "B/1 S"))
        assert_floating(x=x, kv=kv)
        assert_integers(positions=positions, kv_positions=kv_positions)
        query_BTNH = self.queries(x, factor)
        key_BSKH, value_BSKH = self.keys_and_values(kv)
        query_BTNH, key_BSKH = self.rotated(query_BTNH, key_BSKH, positions, kv_positions)
        value_BSKH = self.position.rotate_values(value_BSKH, kv_positions)
        # A subclass need not know of distances.
        options = {} if distances is None else {"distances": distances}
        return self.attend(
            query_BTNH, key_BSKH, value_BSKH, mask=mask, bias=bias, key=key, **options
        )

    def depth_factor(self, context: Context) -> jax.Array | None:
        """The multiplier of the logits of a layer that scales them by its depth, or None."""
        return 1.0 / (jnp.asarray(context.layer) + 1) if self.scale_by_depth else None

    def queries(self, x: jax.Array, factor: jax.Array | None = None) -> jax.Array:
        """Projects `[B, T, D]` to queries `[B, T, N, H]`, before rotation."""
        query_BTNH = tap("hook_q", self._projected(self.query, x))
        if self.query_norm is not None:
            query_BTNH = self.query_norm(query_BTNH)
        return query_BTNH if factor is None else query_BTNH * factor.astype(query_BTNH.dtype)

    def keys_and_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Projects `[B, S, D]` to keys `[B, S, K, H]`, before rotation, and values."""
        key_BSKH = tap("hook_k", self._projected(self.key, x))
        value_BSKH = tap("hook_v", self._projected(self.value, x))
        return key_BSKH if self.key_norm is None else self.key_norm(key_BSKH), value_BSKH

    def rotated(
        self,
        query_BTNH: jax.Array,
        key_BSKH: jax.Array,
        positions: jax.Array,
        kv_positions: jax.Array,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Rotates queries and keys, see `Position.rotate`."""
        given = query_BTNH, key_BSKH
        query_BTNH, key_BSKH = self.position.rotate(*given, positions, kv_positions, lengths)
        if query_BTNH is given[0]:
            return query_BTNH, key_BSKH
        check_result(self.position, query_BTNH, given[0])
        check_result(self.position, key_BSKH, given[1])
        return tap("hook_rot_q", query_BTNH), tap("hook_rot_k", key_BSKH)

    def attend(
        self,
        query_BTNH: jax.Array,
        key_BSKH: jax.Array,
        value_BSKH: jax.Array,
        *,
        mask: Mask,
        bias: Bias | None = None,
        distances: DistanceTerms | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """`[B, T, D]`, attention with rotated queries and keys, and the output projection."""
        options = {"mask": mask, "bias": bias, "distances": distances, "key": key}
        output_BTNH = self.attended(query_BTNH, key_BSKH, value_BSKH, **options)
        return saveable("attention_output", self.output(tap("hook_z", output_BTNH)))

    def attended(self, query_BTNH, key_BSKH, value_BSKH, *, key=None, **options) -> jax.Array:
        """`[B, T, N, H']`, `functional.attention` with the settings of this layer."""
        return attention(
            query_BTNH,
            key_BSKH,
            value_BSKH,
            **options,
            scale=self.scale,
            softcap=self.softcap,
            sinks=value_of(self.sinks),
            dropout_rate=self.dropout,
            dropout_key=key,
            implementation=self.implementation,
        )

    def empty_cache(self, shape: CacheShape, slots: int) -> KeyValueCache:
        """A cache without tokens, for what `rotated` and `keys_and_values` return."""
        return KeyValueCache.empty(shape, slots, self.kv_heads, self.head_dim, self.value_dim)

    def _projected(self, linear: Linear, x: jax.Array) -> jax.Array:
        y = linear(x)
        clipped = y if self.clip is None else jnp.clip(y, -self.clip, self.clip)
        return saveable("query_key_value", clipped)


class SelfAttention(Sublayer):
    """Attention within the sequence, optionally through a sliding window."""

    name = "attn"
    joins = ("attention.query", "attention.key", "attention.value")

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        window: int | None = None,
        attention: Callable[..., Attention] = Attention,
    ):
        """Declares the attention, which `attention` makes of the first three arguments.

        `window` is the number of keys that a query reaches back to; None: all.
        """
        self.attention = attention(key, config, position)
        self.relative = config.relative_position is not None
        self.scheme = config.relative_position or position
        table = self.scheme.table(model_dim=config.model_dim, num_heads=config.num_heads)
        std = normal(config.init_std)
        own = table and not self.scheme.shared
        self.position_table = parameter(jax.random.fold_in(key, 1), *table, std) if own else None
        self.window, self.ahead = window, config.windows_ahead

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        mask = context.mask
        if (window := self.window) is not None:
            # Unless windows reach ahead, the context's mask decides which later keys are visible.
            mask = mask & Band(before=window - 1, after=window - 1 if self.ahead else None)
        return self.attention(
            x,
            mask=mask,
            positions=context.positions,
            bias=self._bias(context),
            distances=self._distances(x, context, key),
            factor=self.attention.depth_factor(context),
            key=key,
        )

    def init_cache(self, shape: CacheShape, encoder_outputs: jax.Array | None) -> KeyValueCache:
        """An empty ring buffer; with a window it has fewer slots."""
        del encoder_outputs
        return self.attention.empty_cache(shape, shape.slots(self.window))

    def step(
        self, x: jax.Array, context: Context, cache: KeyValueCache
    ) -> tuple[jax.Array, KeyValueCache]:
        """Writes the keys and values of the new tokens to the cache, and attends to all of it."""
        attention = self.attention
        positions, lengths, chunk = context.positions, context.lengths, context.chunk
        query_BTNH = attention.queries(x, attention.depth_factor(context))
        key_BTKH, value_BTKH = attention.keys_and_values(x)
        query_BTNH, key_BTKH = attention.rotated(
            query_BTNH, key_BTKH, positions, positions, lengths
        )
        value_BTKH = attention.position.rotate_values(value_BTKH, positions, lengths)
        cache = cache.write(key_BTKH, value_BTKH, chunk)
        slot_positions_BC = chunk.slot_positions(cache.capacity)
        before = None if self.window is None else self.window - 1
        mask = PositionMask(chunk.positions(x.shape[1]), slot_positions_BC, before)
        if type(context.mask) is not Mask:
            mask &= context.mask
        bias = self._bias(context)
        if bias is not None:
            bias = replace(bias, key_positions=slot_positions_BC)
        return attention.attend(query_BTNH, *cache.read(x.dtype), mask=mask, bias=bias), cache

    def _distances(self, x, context, key) -> DistanceTerms | None:
        """What distances add to the products of queries and keys, see `DisentangledAttention`."""
        return None

    def _bias(self, context: Context) -> Bias | None:
        """The bias that all layers share, or that of this layer's own table."""
        if self.position_table is None:
            return context.bias
        positions = context.positions
        if context.chunk is not None:
            positions = context.chunk.positions(positions.shape[1])
        elif self.relative:
            positions = jnp.arange(positions.shape[1])[None, :]
        heads, table = self.attention.num_heads, self.position_table[...]
        return self.scheme.bias(positions, positions, num_heads=heads, table=table)


class CrossAttention(Sublayer):
    """Attention to encoder outputs."""

    name = "cross_attn"

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        attention: Callable[..., Attention] = Attention,
    ):
        """Declares the attention, which has no positions; see `SelfAttention`."""
        self.attention = attention(key, config, NoPosition(), config.encoder_width)

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        return self.attention(
            x,
            kv=context.encoder_outputs,
            mask=context.encoder_mask,
            positions=context.positions,
            factor=self.attention.depth_factor(context),
            key=key,
        )

    def init_cache(self, shape: CacheShape, encoder_outputs: jax.Array | None) -> EncoderCache:
        """The keys and values of the encoder outputs, computed once."""
        return EncoderCache.of(*self.attention.keys_and_values(encoder_outputs), shape)

    def step(
        self, x: jax.Array, context: Context, cache: EncoderCache
    ) -> tuple[jax.Array, EncoderCache]:
        """`[R, T, D]`, where R is a multiple of the rows of the cache, and the same cache."""
        # The beams of a row follow one another and attend to its encoder outputs together, as if
        # they were one longer row.
        key_BSKH, value_BSKH = cache.read(x.dtype)
        query_BTNH = self.attention.queries(x, self.attention.depth_factor(context))
        query_BTNH = merge_rows(query_BTNH, key_BSKH.shape[0])
        mask = context.encoder_mask
        output_BTD = self.attention.attend(query_BTNH, key_BSKH, value_BSKH, mask=mask)
        return merge_rows(output_BTD, x.shape[0]), cache


@dataclass(frozen=True, kw_only=True)
class DotProductAttention(SelfAttentionConfig):
    """Multi-head scaled dot-product attention: `SelfAttention`.

    References:
        Vaswani et al., Attention Is All You Need (https://arxiv.org/abs/1706.03762).
    """

    bias: bool = False
    """Biases of the query, key and value projections."""
    key_bias: bool = True
    """False leaves them out of the key projection (BEiT)."""
    output_bias: bool = False
    """Bias of the output projection."""
    scale: float | None = None
    """Multiplies the logits. None: 1 / sqrt(head_dim)."""
    scale_by_depth: bool = False
    """Also divide the logits of the n-th layer by n (Mistral's GPT-2)."""
    clip: float | None = None
    """Bounds queries, keys and values (MPT)."""
    softcap: float | None = None
    """Bounds the logits (Gemma 2)."""
    sinks: bool = False
    """Each head has a learned logit in the denominator of its softmax (gpt-oss)."""
    dropout: float = 0.0
    """Dropout of the probabilities."""
    query_key_norm: Norm | None = None
    """A norm of queries and keys, before rotation (Qwen 3)."""
    query_key_norm_over: Literal["head", "each_head", "all_heads"] = "head"
    """What it normalises: each head with shared parameters, each head with its own (StableLM 2), or
    all heads of a token together (OLMo 2)."""

    def __post_init__(self):
        super().__post_init__()
        bounds = dict.fromkeys(("scale", "clip", "softcap"), optional(POSITIVE))
        check_fields(self, dropout=RATE, **bounds)

    def build(self, key, config, position, window):
        return SelfAttention(key, config, position, window, partial(Attention, settings=self))

    def plain(self) -> "DotProductAttention":
        """Plain attention with these settings."""
        shared = {each.name: getattr(self, each.name) for each in fields(DotProductAttention)}
        return DotProductAttention(**shared)

    def products_per_pair(self, config):
        return config.num_heads * (config.head_width + config.value_width)


@dataclass(frozen=True)
class DotProductCrossAttention(CrossAttentionConfig):
    """Multi-head attention to encoder outputs: `CrossAttention`."""

    settings: DotProductAttention | None = None
    """Its settings. None: those of the model's `self_attention`."""

    def build(self, key, config, position, window):
        del position, window
        return CrossAttention(key, config, partial(Attention, settings=self.settings))

    def products(self, config):
        return config.model_dim * config.num_heads * (config.head_width + config.value_width)

    def encoder_products(self, config):
        return config.encoder_width * config.kv_heads * (config.head_width + config.value_width)

    products_per_pair = DotProductAttention.products_per_pair
