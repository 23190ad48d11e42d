"""From token embeddings to the residual stream."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.functional.assertions import (
    assert_axes,
    assert_floating,
    assert_ids,
    assert_integers,
)
from jaxformer.functional.dropout import dropout
from jaxformer.functional.lookup import lookup
from jaxformer.functional.positions.base import Bias, Position
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.linear import Linear
from jaxformer.nn.norm import optional_norm
from jaxformer.nn.parameter import normal, parameter, value_of


class InputLayer(nnx.Module):
    r"""Adds what a token's place and kind say to its embedding.

    .. math:: x = \mathrm{dropout}(\mathrm{norm}(s\, e_t + p_t + \sum_k W^k_{i^k_t}))

    where the position code p, the tables of kinds W (token types, tasks) and the norm are there if
    the config has them. Embeddings narrower than the stream are projected to it at the end, or
    first if the states that heads read are as narrow again.

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
            key: Of the initial values.
            config: Sizes, norm, scale and dropout.
            position: The positional scheme, whose table (if it has one) lives here.
            width: Of the embeddings that come in.
            kinds: Rows of a table for each kind of kinds: `{"token_types": 2}`.
        """
        kinds = kinds or {}
        keys = jax.random.split(key, 3 + len(kinds))
        std = normal(config.init_std)
        self.project_first = width == config.output_width != config.model_dim
        narrow, width = width, config.model_dim if self.project_first else width
        self.position_table = _table(keys[0], position, width, config)
        self.relative_position = config.relative_position
        own_key = jax.random.fold_in(key, 1)
        self.relative_table = _table(own_key, self.relative_position, width, config)
        self.embedding_norm = optional_norm(keys[1], config.embedding_norm, width)
        outputs = {"embed": config.model_dim}
        bias = not self.project_first
        projection = Linear(keys[2], {"vocab_embed": narrow}, outputs, std, bias=bias)
        self.projection = None if narrow == config.model_dim else projection
        self.kinds = nnx.Dict(
            {
                name: parameter(kind_key, (rows, width), ("kinds", "vocab_embed"), std)
                for (name, rows), kind_key in zip(kinds.items(), keys[3:], strict=True)
            }
        )
        self.position, self.num_heads = position, config.num_heads
        own = config.embedding_dropout
        self.scale, self.dropout = config.embedding_scale, config.dropout if own is None else own

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
            key: The dropout key; None in evaluation.
        """
        sizes = assert_axes(x=(x, "B T E"), positions=(positions, "B/1 T"))
        assert_floating(x=x)
        assert_integers(positions=positions)
        for name, table in self.kinds.items():
            if kinds is not None and name in kinds:
                assert_axes(sizes, **{name: (kinds[name], "B T")})
                assert_ids(table.shape[0], **{name: kinds[name]})
        x = x * jnp.asarray(self.scale, x.dtype)
        if self.project_first:
            x = self.projection(x)
        x = self.position.embed(x, positions, value_of(self.position_table))
        for name, table in self.kinds.items():
            ids = None if kinds is None else kinds.get(name)
            table = table[...].astype(x.dtype)
            x = x + (table[None, :1] if ids is None else lookup(table, ids))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = dropout(x, self.dropout, key)
        return x if self.projection is None or self.project_first else self.projection(x)

    def bias(self, positions: jax.Array, places: jax.Array | None = None) -> Bias | None:
        """What the positional schemes add to the logits of self-attention in all layers.

        Args:
            positions: int `[B or 1, T]`.
            places: int `[B or 1, T]`: where the tokens lie in their rows; None: from 0.
        """
        if self.relative_position is not None:
            places = jnp.arange(positions.shape[1])[None, :] if places is None else places
            scheme, table = self.relative_position, value_of(self.relative_table)
            return scheme.bias(places, places, num_heads=self.num_heads, table=table)
        if not self.position.shared:
            return None
        table = value_of(self.position_table)
        return self.position.bias(positions, positions, num_heads=self.num_heads, table=table)


def _table(
    key: jax.Array, position: Position | None, width: int, config: TransformerConfig
) -> nnx.Param | None:
    """The one table of a scheme, if it has one."""
    if position is None or not position.shared:
        return None
    table = position.table(model_dim=width, num_heads=config.num_heads)
    std = normal(config.init_std)
    return parameter(key, *table, std, learns=position.learns) if table else None
