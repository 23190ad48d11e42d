"""Biases of sparse attention: for global tokens that summarize blocks, and for repeated keys."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from jaxformer.checks import check_field
from jaxformer.functional.positions.bias import Bias
from jaxformer.functional.positions.relative import t5_bias
from jaxformer.functional.positions.schemes import T5Bias


@dataclass(frozen=True)
class T5GlobalBias(T5Bias):
    """T5Bias with a second table for global tokens that summarize blocks (Guo et al., LongT5,
    2022).

    Its distances are between the query's block and the block that the key summarizes.
    """

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "shared", self.shared, "True: all layers share the tables")

    def global_table(self, *, model_dim, num_heads):
        return self.table(model_dim=model_dim, num_heads=num_heads)

    def score(self, heads, query_positions, key_positions):
        """See `t5_bias`; the first half of `heads` is the table of tokens."""
        return super().score(heads[: self.num_buckets], query_positions, key_positions)

    def with_global_keys(self, bias, numbers, count, size):
        tokens = bias.key_positions
        pad = ((0, 0), (count, 0))
        blocks = jnp.pad(jnp.arange(count)[None, :], ((0, 0), (0, tokens.shape[1])))
        is_global = jnp.arange(count + tokens.shape[1])[None, :] < count
        return replace(
            bias,
            query_positions=(bias.query_positions, numbers),
            key_positions=(jnp.pad(tokens, pad), blocks, is_global),
            scheme=_BesideGlobal(self),
        )


@dataclass(frozen=True)
class _BesideGlobal:
    """Scores where the first keys summarize blocks."""

    scheme: T5GlobalBias

    def score(self, heads, query_positions, key_positions):
        tokens, numbers = query_positions
        key_tokens, blocks, is_global = key_positions
        scheme = self.scheme
        options = {"bidirectional": scheme.bidirectional, "max_distance": scheme.max_distance}
        local = t5_bias(heads[: scheme.num_buckets], tokens, key_tokens, **options)
        local = jnp.broadcast_to(local, (numbers.shape[0], *local.shape[1:]))

        def with_blocks():
            side = t5_bias(heads[scheme.num_buckets :], numbers, blocks, **options)
            return jnp.where(is_global[:, None, None, :], side, local)

        # Most attention blocks have no global keys.
        return jax.lax.cond(jnp.any(is_global), with_blocks, lambda: local)


@dataclass(frozen=True)
class RepeatedBlock:
    r"""The bias that counts each key of the first block n times.

    .. math:: n e^x = e^{x + \ln n}

    for the queries of all blocks except the first and the last.
    """

    block_size: int
    """Tokens of a block."""
    num_blocks: int
    """The number of blocks."""

    def bias(self, times: int, length: int, num_heads: int) -> Bias:
        """Returns the bias of `length` queries and keys, in which keys count `times` (n) times."""
        index = jnp.arange(length)[None, :]
        return Bias(jnp.full(num_heads, math.log(times), jnp.float32), index, index, self)

    def score(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        """Returns `heads` `[N]` for the repeated pairs and 0 for all others, `[1, N, T, S]`."""
        block = query_positions // self.block_size
        between = (block > 0) & (block < self.num_blocks - 1)
        counted = between[:, :, None] & (key_positions < self.block_size)[:, None, :]
        return jnp.where(counted[:, None], heads[None, :, None, None], 0.0)
