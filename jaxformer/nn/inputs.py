"""From token embeddings to the residual stream."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.dropout import dropout
from jaxformer.functional.lookup import lookup
from jaxformer.functional.position import Bias, Position
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import optional_norm
from jaxformer.nn.parameter import normal, parameter, value_of


class InputLayer(nnx.Module):
    r"""Adds what a token's place and kind say to its embedding.

    .. math:: x = \mathrm{dropout}(\mathrm{norm}(s\, e_t + p_t + \sum_k W^k_{i^k_t}))

    where the position code p, the tables of kinds W (token types, tasks) and the norm are there if
    the config has them; embeddings narrower than the stream are projected to it at the end.

    References:
      Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762);
      Devlin et al., BERT (https://arxiv.org/abs/1810.04805);
      Lan et al., ALBERT (https://arxiv.org/abs/1909.11942), for the projection.
    """

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        width: int,
        kinds: Mapping[str, int] | None = None,
    ):
        """Declares the tables.

        Args:
          key: of the initial values.
          config: sizes, norm, scale and dropout.
          position: the positional scheme, whose table (if it has one) lives here.
          width: of the embeddings that come in.
          kinds: rows of a table for each kind of kinds: `{"token_types": 2}`.
        """
        kinds = kinds or {}
        keys = jax.random.split(key, 3 + len(kinds))
        std = normal(config.init_std)
        table = position.table(model_dim=width, num_heads=config.num_heads)
        self.position_table = parameter(keys[0], *table, std) if table else None
        self.embedding_norm = optional_norm(keys[1], config.embedding_norm, width)
        outputs = {"embed": config.model_dim}
        projection = Linear(keys[2], {"vocab_embed": width}, outputs, std, bias=True)
        self.projection = None if width == config.model_dim else projection
        self.kinds = nnx.Dict(
            {
                name: parameter(kind_key, (rows, width), ("kinds", "vocab_embed"), std)
                for (name, rows), kind_key in zip(kinds.items(), keys[3:], strict=True)
            }
        )
        self.position, self.num_heads = position, config.num_heads
        self.scale, self.dropout = config.embedding_scale, config.dropout

    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array,
        kinds: Mapping[str, jax.Array] | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """`[B, T, E] -> [B, T, D]`.

        Args:
          x: `[B, T, E]`, in the compute dtype.
          positions: int `[B or 1, T]`.
          kinds: int `[B, T]` for the tables by name; a table without ids gives its row 0.
          key: the dropout key; None in evaluation.
        """
        x = x * jnp.asarray(self.scale, x.dtype)
        x = self.position.embed(x, positions, value_of(self.position_table))
        for name, table in self.kinds.items():
            ids = None if kinds is None else kinds.get(name)
            table = table[...].astype(x.dtype)
            x = x + (table[None, :1] if ids is None else lookup(table, ids))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = dropout(x, self.dropout, key)
        return x if self.projection is None else self.projection(x)

    def bias(self, positions: jax.Array) -> Bias | None:
        """What the positional scheme adds to the logits of self-attention."""
        table = value_of(self.position_table)
        return self.position.bias(positions, positions, num_heads=self.num_heads, table=table)
