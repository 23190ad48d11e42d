"""Multi-head attention, to itself or to a memory."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.assertions import assert_axes, assert_floating, assert_integers
from jaxformer.functional.attention.api import attention
from jaxformer.functional.masks import Band, Mask, PositionMask
from jaxformer.functional.placement import spec_of
from jaxformer.functional.positions.base import Bias, NoPosition, Position
from jaxformer.nn.cache import CacheShape, KeyValueCache, MemoryCache
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.context import Context
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import JointNorm, NormLayer, optional_norm
from jaxformer.nn.parameter import normal, parameter
from jaxformer.nn.sublayer import Sublayer


class Attention(nnx.Module):
    """Query, key, value and output projections around `functional.attention`."""

    def __init__(self, key: jax.Array, config: TransformerConfig, position: Position):
        """Declares the four projections and, if the config has them, the norms of query and key."""
        keys = jax.random.split(key, 6)
        model, head = {"embed": config.model_dim}, {"head_dim": config.head_width}
        heads, kv_heads = {"heads": config.num_heads}, {"kv_heads": config.kv_heads}
        std, bias = normal(config.init_std), config.attention_bias
        self.query = Linear(keys[0], model, heads | head, std, bias=bias)
        self.key = Linear(keys[1], model, kv_heads | head, std, bias=bias)
        self.value = Linear(keys[2], model, kv_heads | head, std, bias=bias)
        self.output = Linear(
            keys[3],
            heads | head,
            model,
            normal(config.output_std),
            bias=config.attention_output_bias,
        )
        self.query_norm = _head_norm(keys[4], config, heads)
        self.key_norm = _head_norm(keys[5], config, kv_heads)
        self.position, self.num_heads = position, config.num_heads
        self.kv_heads, self.head_dim = config.kv_heads, config.head_width
        self.scale = config.attention_scale
        self.softcap = config.attention_softcap
        self.clip, self.dropout = config.attention_clip, config.attention_dropout
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
        factor: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Attends from `x` to `kv` (None: to `x` itself).

        Args:
            x: `[B, T, D]`.
            kv: `[B, S, D]` or None.
            mask: A spec of `functional.masks`.
            positions: int `[B or 1, T]` of the queries.
            kv_positions: int `[B or 1, S]` of the keys; None: those of the queries.
            bias: What the positional scheme adds to the logits.
            factor: Multiplies the logits before that, besides the config's scale; None: 1.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]`.
        """
        kv = x if kv is None else kv
        width = {"D": self.query.inputs[0]}
        sizes = assert_axes(width, x=(x, "B T D"), kv=(kv, "B S D"), positions=(positions, "B/1 T"))
        assert_floating(x=x, kv=kv)
        assert_integers(positions=positions)
        if kv_positions is not None:
            assert_axes(sizes, kv_positions=(kv_positions, "B/1 S"))
            assert_integers(kv_positions=kv_positions)
        query_BTNH = self.queries(x, factor)
        key_BSKH, value_BSKH = self.keys_and_values(kv)
        places = positions, positions if kv_positions is None else kv_positions
        rotated = self.position.rotate(query_BTNH, key_BSKH, *places)
        return self.attend(*rotated, value_BSKH, mask=mask, bias=bias, key=key)

    def queries(self, x: jax.Array, factor: jax.Array | None = None) -> jax.Array:
        """Queries `[B, T, N, H]` of `x` `[B, T, D]`, not yet rotated.

        Args:
            x: The stream.
            factor: Multiplies the logits, besides the config's scale; None: 1.
        """
        query_BTNH = self._clipped(self.query(x))
        if self.query_norm is not None:
            query_BTNH = self.query_norm(query_BTNH)
        return query_BTNH if factor is None else query_BTNH * factor.astype(query_BTNH.dtype)

    def keys_and_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys, not yet rotated, and values, `[B, S, K, H]` each, of `x` `[B, S, D]`."""
        key_BSKH, value_BSKH = self._clipped(self.key(x)), self._clipped(self.value(x))
        return key_BSKH if self.key_norm is None else self.key_norm(key_BSKH), value_BSKH

    def attend(
        self,
        query_BTNH: jax.Array,
        key_BSKH: jax.Array,
        value_BSKH: jax.Array,
        *,
        mask: Mask,
        bias: Bias | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """The output `[B, T, D]`.

        Args:
            query_BTNH: Rotated, where the scheme rotates.
            key_BSKH: Likewise.
            value_BSKH: As they are.
            mask: A spec of `functional.masks`.
            bias: What the positional scheme adds to the logits.
            key: The dropout key; None in evaluation.
        """
        output_BTNH = attention(
            query_BTNH,
            key_BSKH,
            value_BSKH,
            mask=mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            dropout_rate=self.dropout,
            dropout_key=key,
            implementation=self.implementation,
        )
        return self.output(output_BTNH)

    def _clipped(self, x: jax.Array) -> jax.Array:
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)


def _head_norm(
    key: jax.Array, config: TransformerConfig, heads: dict[str, int]
) -> NormLayer | None:
    """The norm of these heads' queries or keys, where the config has one."""
    norm, width = config.query_key_norm, config.head_width
    if norm is None or config.query_key_norm_over == "head":
        return optional_norm(key, norm, width)
    if config.query_key_norm_over == "each_head":
        return NormLayer(key, norm, width, heads)
    return JointNorm(key, norm, math.prod(heads.values()) * width)


class SelfAttention(Sublayer):
    """The sublayer of a block that attends within the sequence, perhaps through a window."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        window: int | None = None,
    ):
        """Declares the attention; `window` is the number of keys back to which it reaches."""
        self.attention = Attention(key, config, position)
        table = position.table(model_dim=config.model_dim, num_heads=config.num_heads)
        std, own = normal(config.init_std), table and not position.shared
        self.position_table = parameter(jax.random.fold_in(key, 1), *table, std) if own else None
        self.window, self.ahead = window, config.windows_ahead
        self.scale_by_depth = config.attention_scale_by_depth

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        mask = context.mask
        if (window := self.window) is not None:
            # Without `ahead`, who may look ahead, and how far, is up to the context's mask.
            mask = mask & Band(before=window - 1, after=window - 1 if self.ahead else None)
        bias, factor, positions = self._bias(context), self._factor(context), context.positions
        return self.attention(x, mask=mask, positions=positions, bias=bias, factor=factor, key=key)

    def start(self, shape: CacheShape, memory: jax.Array | None) -> KeyValueCache:
        """An empty ring."""
        del memory
        slots, attention = shape.slots(self.window), self.attention
        return KeyValueCache.empty(shape, slots, attention.kv_heads, attention.head_dim)

    def extend(
        self, x: jax.Array, context: Context, cache: KeyValueCache
    ) -> tuple[jax.Array, KeyValueCache]:
        """Attends to what is kept, which the tokens of `context.span` have joined before."""
        attention, places = self.attention, context.positions
        query = attention.queries(x, self._factor(context))
        key, value = attention.keys_and_values(x)
        query, key = attention.position.rotate(query, key, places, places, context.lengths)
        cache = cache.write(key, value, context.span)
        held = context.span.held(cache.capacity)
        mask = PositionMask(places, held, None if self.window is None else self.window - 1)
        bias = self._bias(context)
        if bias is not None:
            bias = replace(bias, key_positions=held)
        return attention.attend(query, *cache.read(x.dtype), mask=mask, bias=bias), cache

    def _factor(self, context: Context) -> jax.Array | None:
        return 1.0 / (jnp.asarray(context.layer) + 1) if self.scale_by_depth else None

    def _bias(self, context: Context) -> Bias | None:
        """What all layers add to the logits, or this one alone."""
        if self.position_table is None:
            return context.bias
        places, heads = context.positions, self.attention.num_heads
        table = self.position_table[...]
        return self.attention.position.bias(places, places, num_heads=heads, table=table)


class CrossAttention(Sublayer):
    """The sublayer of a block that attends to an encoder's output."""

    def __init__(self, key: jax.Array, config: TransformerConfig):
        """Declares the attention; positions play no part in it."""
        self.attention = Attention(key, config, NoPosition())

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        return self.attention(
            x, kv=context.memory, mask=context.memory_mask, positions=context.positions, key=key
        )

    def start(self, shape: CacheShape, memory: jax.Array | None) -> MemoryCache:
        """Keys and values of the memory, which stay as they are."""
        return MemoryCache.of(*self.attention.keys_and_values(memory), shape)

    def extend(
        self, x: jax.Array, context: Context, cache: MemoryCache
    ) -> tuple[jax.Array, MemoryCache]:
        """Attends to the memory's keys and values; of B memories `[B, S, D]` each for R / B rows.

        The rows that share a memory follow each other, as beams do, and attend to it together.
        """
        key, value = cache.read(x.dtype)
        query = _regrouped(self.attention.queries(x), key.shape[0])
        y = self.attention.attend(query, key, value, mask=context.memory_mask)
        return _regrouped(y, x.shape[0]), cache


def _regrouped(x: jax.Array, rows: int) -> jax.Array:
    """`[R, T, ...]` as `[rows, R T / rows, ...]`, cut over a mesh as it was."""
    shape = (rows, x.shape[0] * x.shape[1] // rows, *x.shape[2:])
    return x if shape == x.shape else jax.lax.reshape(x, shape, out_sharding=spec_of(x))
