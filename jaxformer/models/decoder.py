"""The decoder-only family: GPT, Llama, Mistral and the like from data alone."""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.dropout import dropout, split
from jaxformer.functional.linear import linear
from jaxformer.functional.masks import Mask, Segments, causal
from jaxformer.models.config import DecoderConfig
from jaxformer.nn import Block, Context, Embedding, FeedForward, SelfAttention, Stack
from jaxformer.nn.norm import optional_norm
from jaxformer.nn.parameter import constant, normal, parameter, value_of


class Head(NamedTuple):
    """The map from hidden states to logits, as the losses want it."""

    kernel: jax.Array
    """`[D, V]`."""
    bias: jax.Array | None
    """`[V]` or None."""
    softcap: float | None
    """The bound of the logits, or None."""


class Decoder(nnx.Module):
    """A causal language model: embedding, stack of (self-attention, feed-forward), norm, head."""

    def __init__(self, key: jax.Array, config: DecoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 6)
        dim, std = config.model_dim, normal(config.init_std)
        self.config = config
        self.embedding = Embedding(keys[0], config.vocab_size, dim, std)
        table = config.position.table(model_dim=dim, num_heads=config.num_heads)
        self.position_table = parameter(keys[1], *table, std) if table else None
        self.embedding_norm = optional_norm(keys[2], config.embedding_norm, dim)
        group = tuple(partial(decoder_block, config=config, window=w) for w in config.windows)
        self.stack = Stack(keys[3], config.num_layers, group)
        final_norm = config.norm if config.residual.final_norm else None
        self.final_norm = optional_norm(keys[4], final_norm, dim)
        size, axes = config.vocab_size, ("vocab_embed", "vocab")
        tied = config.tie_embeddings
        self.head_kernel = None if tied else parameter(keys[5], (dim, size), axes, std)
        bias = parameter(keys[5], (size,), ("vocab",), constant(0.0)) if config.head_bias else None
        self.head_bias = bias

    def hidden(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """The normalised hidden states.

        Args:
          inputs: int token ids `[B, T]`.
          positions: int `[B or 1, T]`; None counts from 0.
          segments: int `[B, T]`: the document of each token, 0 for padding; None is one document.
          mask: what is allowed besides causality (padding, say).
          key: the dropout key; None in evaluation.

        Returns:
          `[B, T, D]` in the compute dtype.
        """
        chex.assert_rank(inputs, 2)
        config, length = self.config, inputs.shape[1]
        if positions is None:
            positions = jnp.arange(length)[None, :]
        mask = causal() & (Mask() if mask is None else mask)
        if segments is not None:
            mask = mask & Segments(segments, segments)
        table = value_of(self.position_table)
        bias = config.position.bias(positions, positions, num_heads=config.num_heads, table=table)
        embed_key, stack_key = split(key, 2)
        x = self.embedding(inputs, config.dtype) * jnp.asarray(config.embedding_scale, config.dtype)
        x = config.position.embed(x, positions, table)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = dropout(x, config.dropout, embed_key)
        context = Context(positions=positions, mask=mask, bias=bias)
        x = self.stack(x, context, stack_key, scan=config.scan_layers, remat=config.remat)
        return x if self.final_norm is None else self.final_norm(x)

    def head(self) -> Head:
        """The output head; with tied embeddings the transposed table, never a copy of it."""
        tied = self.config.tie_embeddings
        kernel = _transposed(self.embedding.table[...]) if tied else self.head_kernel[...]
        return Head(kernel, value_of(self.head_bias), self.config.logit_softcap)

    def __call__(self, inputs: jax.Array, **options) -> jax.Array:
        """Float32 logits `[B, T, V]`; `options` are those of `hidden`."""
        return logits(self.hidden(inputs, **options), self.head())


@jax.custom_vjp
def _transposed(table: jax.Array) -> jax.Array:
    return table.T


# Without the barrier XLA's CPU backend folds the transpose into the product that makes the
# gradient, and has no kernel for the bfloat16 x bfloat16 -> float32 product in that layout.
_transposed.defvjp(
    lambda table: (table.T, None),
    lambda _, gradient: (jax.lax.optimization_barrier(gradient).T,),
)


def decoder_block(key: jax.Array, config: DecoderConfig, window: int | None) -> Block:
    """A block of (causal self-attention, feed-forward)."""
    keys = jax.random.split(key, 3)
    sublayers = (SelfAttention(keys[0], config, window), FeedForward(keys[1], config))
    return Block(keys[2], config, sublayers)


def logits(hidden: jax.Array, head: Head) -> jax.Array:
    """Float32 `[B, T, V]` from hidden states `[B, T, D]`."""
    values = linear(hidden, head.kernel, head.bias, dtype=jnp.float32)
    return values if head.softcap is None else head.softcap * jnp.tanh(values / head.softcap)
