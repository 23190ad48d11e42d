"""Multi-head attention, to itself or to a memory."""

import jax
from flax import nnx

from jaxformer.functional.attention import attention
from jaxformer.functional.masks import Band, Mask
from jaxformer.functional.position import Bias, NoPosition, Position
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.context import Context
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import optional_norm
from jaxformer.nn.parameter import normal


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
        self.query_norm = optional_norm(keys[4], config.query_key_norm, config.head_width)
        self.key_norm = optional_norm(keys[5], config.query_key_norm, config.head_width)
        self.position = position
        self.scale = config.attention_scale
        self.softcap = config.attention_softcap
        self.dropout = config.attention_dropout
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
          key: the dropout key; None in evaluation.

        Returns:
          `[B, T, D]`.
        """
        kv = x if kv is None else kv
        query_BTNH, key_BSKH, value_BSKH = self.query(x), self.key(kv), self.value(kv)
        if self.query_norm is not None:
            query_BTNH, key_BSKH = self.query_norm(query_BTNH), self.key_norm(key_BSKH)
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
        self.window = window

    def __call__(self, x: jax.Array, context: Context, key: jax.Array | None) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`."""
        # A limit on the past alone: who may look ahead, and how far, is up to the context's mask.
        reach = Mask() if self.window is None else Band(before=self.window - 1)
        mask = context.mask & reach
        return self.attention(x, mask=mask, positions=context.positions, bias=context.bias, key=key)


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
