"""Multi-head attention, to itself or to a memory."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.attention import attention
from jaxformer.functional.masks import Band, Mask
from jaxformer.functional.position import Bias, NoPosition, Position
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.context import Context
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import JointNorm, NormLayer, optional_norm
from jaxformer.nn.parameter import normal, parameter


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
          mask: a spec of `functional.masks`.
          positions: int `[B or 1, T]` of the queries.
          kv_positions: int `[B or 1, S]` of the keys; None: those of the queries.
          bias: what the positional scheme adds to the logits.
          factor: multiplies the logits before that, besides the config's scale; None: 1.
          key: the dropout key; None in evaluation.

        Returns:
          `[B, T, D]`.
        """
        kv = x if kv is None else kv
        query_BTNH, key_BSKH, value_BSKH = self.query(x), self.key(kv), self.value(kv)
        if self.clip is not None:
            clipped = partial(jnp.clip, min=-self.clip, max=self.clip)
            query_BTNH, key_BSKH, value_BSKH = map(clipped, (query_BTNH, key_BSKH, value_BSKH))
        if self.query_norm is not None:
            query_BTNH, key_BSKH = self.query_norm(query_BTNH), self.key_norm(key_BSKH)
        if factor is not None:
            query_BTNH = query_BTNH * factor.astype(query_BTNH.dtype)
        kv_positions = positions if kv_positions is None else kv_positions
        query_BTNH, key_BSKH = self.position.rotate(query_BTNH, key_BSKH, positions, kv_positions)
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


class SelfAttention(nnx.Module):
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
        factor = 1.0 / (jnp.asarray(context.layer) + 1) if self.scale_by_depth else None
        bias = self._bias(context)
        return self.attention(
            x, mask=mask, positions=context.positions, bias=bias, factor=factor, key=key
        )

    def _bias(self, context: Context) -> Bias | None:
        """What all layers add to the logits, or this one alone."""
        if self.position_table is None:
            return context.bias
        places, heads = context.positions, self.attention.num_heads
        table = self.position_table[...]
        return self.attention.position.bias(places, places, num_heads=heads, table=table)


class CrossAttention(nnx.Module):
    """The sublayer of a block that attends to an encoder's output."""

    def __init__(self, key: jax.Array, config: TransformerConfig):
        """Declares the attention; positions play no part in it."""
        self.attention = Attention(key, config, NoPosition())

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        return self.attention(
            x, kv=context.memory, mask=context.memory_mask, positions=context.positions, key=key
        )
