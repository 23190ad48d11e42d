"""The input layer: from token embeddings to the residual stream."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import check_argument
from jaxformer.functional.activations import is_wanted, tap
from jaxformer.functional.arrays import (
    assert_axes,
    assert_floating,
    assert_ids,
    assert_integers,
    check_result,
)
from jaxformer.functional.dropout import dropout
from jaxformer.functional.linear import lookup
from jaxformer.functional.masks import Mask, Segments
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.bias import Bias
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, normal, optional_norm, parameter, value_of


def assert_tokens(
    vocab_size: int,
    inputs: jax.Array,
    *,
    positions: jax.Array | None = None,
    mask: Mask | None = None,
    **per_token: jax.Array | None,
) -> None:
    """Asserts that token ids `[B, T]`, positions, a mask and other ids `[B, T]` fit together."""
    sizes = assert_axes(inputs=(inputs, "B T"))
    assert_ids(vocab_size, inputs=inputs)
    wanted = "a mask such as KeyPadding(valid), for an array DenseMask(array), or None"
    check_argument("mask", mask, mask is None or isinstance(mask, Mask), wanted)
    if positions is not None:
        assert_axes(sizes, positions=(positions, "B/1 T"))
        assert_integers(positions=positions)
    for name, array in per_token.items():
        if array is not None:
            assert_axes(sizes, **{name: (array, "B T")})
            assert_integers(**{name: array})


def token_mask(
    vocab_size: int,
    inputs: jax.Array,
    positions: jax.Array | None,
    segments: jax.Array | None,
    mask: Mask | None,
) -> Mask:
    """The mask of rows and of the documents in them, all of which it asserts to fit together."""
    assert_tokens(vocab_size, inputs, positions=positions, segments=segments, mask=mask)
    mask = Mask() if mask is None else mask
    return mask if segments is None else mask & Segments(segments, segments)


class InputLayer(nnx.Module):
    r"""Adds position and type embeddings to token embeddings.

    .. math:: x = \mathrm{dropout}(\mathrm{norm}(s\, e_t + p_t + \sum_k W^k_{i^k_t}))

    The position code p, the tables W of type embeddings (token types, also called segments, and
    task types) and the norm are optional. A scheme may have its code added after the norm.
    Embeddings narrower than the residual stream are projected to it last, or first if the states
    that heads read are as narrow again, or right before the norm if so configured.

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
        type_sizes: Mapping[str, int] | None = None,
    ):
        """Declares the tables.

        Args:
            key: A PRNG key for the initial values.
            config: Sizes, norm, scale and dropout.
            position: The positional scheme; its table, if it has one, is declared here.
            width: The width of the token embeddings (E).
            type_sizes: The number of rows of each table of type embeddings: `{"token_types": 2}`.
        """
        type_sizes = type_sizes or {}
        keys = jax.random.split(key, 4 + len(type_sizes))
        std = normal(config.init_std)
        self.project_first = width == config.output_width != config.model_dim
        narrow = width
        width = config.model_dim if self.project_first else width
        self.position_table = _table(keys[0], position, width, config)
        own = position.global_table(model_dim=width, num_heads=config.num_heads)
        fresh = jax.random.fold_in(keys[0], 1)
        self.global_position_table = parameter(fresh, *own, std) if own else None
        self.relative_position = config.relative_position
        self.relative_table = _table(keys[-1], self.relative_position, config.model_dim, config)
        norm = None if self.relative_position is None else self.relative_position.norm
        self.relative_norm = optional_norm(fresh, norm, config.model_dim)
        embeddings = config.embeddings
        self.project_before_norm = embeddings.project_before_norm
        normed = config.model_dim if self.project_before_norm else width
        self.embedding_norm = optional_norm(keys[1], embeddings.norm, normed)
        axes = {"vocab_embed": narrow}, {"embed": config.model_dim}
        same = narrow == config.model_dim
        bias = not (self.project_first or self.project_before_norm)
        self.projection = None if same else Linear(keys[2], *axes, std, bias=bias)
        self.kinds = nnx.Dict(
            {
                name: parameter(type_key, (rows, width), ("kinds", "vocab_embed"), std)
                for (name, rows), type_key in zip(type_sizes.items(), keys[3:-1], strict=True)
            }
        )
        self.position = position
        self.num_heads = config.num_heads
        own = embeddings.dropout
        self.scale = embeddings.scale
        self.dropout = config.dropout if own is None else own

    def __call__(
        self,
        x: jax.Array,
        positions: jax.Array,
        type_ids: Mapping[str, jax.Array] | None = None,
        key: jax.Array | None = None,
        real: jax.Array | None = None,
        grids: jax.Array | None = None,
    ) -> jax.Array:
        """`[B, T, E] -> [B, T, D]`.

        Args:
            x: Token embeddings `[B, T, E]` in the compute dtype.
            positions: int `[B or 1, T]`.
            type_ids: int `[B, T]` for each table of type embeddings; a missing one means row 0.
            key: The dropout key; None in evaluation.
            real: bool `[B or 1, T]`: the other tokens become zeros; None: all are real.
            grids: int `[B, 2]`: rows and columns of the patches of each image, which determine the
                positions; None: `positions` do.

        Returns:
            The residual stream `[B, T, D]`.
        """
        type_ids = type_ids or {}
        sizes = assert_axes(x=(x, "B T E"), positions=(positions, "B/1 T"))
        assert_floating(x=x)
        assert_integers(positions=positions)
        if grids is not None:
            one = f"None: all images have one grid in {self.position}"
            check_argument("grids", grids, self.position.any_grid, one)
            assert_axes(sizes, grids=(grids, "B 2"))
            assert_integers(grids=grids)
        for name, table in self.kinds.items():
            if name in type_ids:
                assert_axes(sizes, **{name: (type_ids[name], "B T")})
                assert_ids(table.shape[0], **{name: type_ids[name]})
        x = x * jnp.asarray(self.scale, x.dtype)
        if self.project_first:
            x = self.projection(x)
        x = tap("hook_embed", x)
        if not self.position.after_norm:
            x = self._positioned(x, positions, grids)
        for name, table in self.kinds.items():
            table = table[...].astype(x.dtype)
            code = lookup(table, type_ids[name]) if name in type_ids else table[None, :1]
            x += tap(f"hook_{name.removesuffix('s')}_embed", code)
        if self.projection is not None and self.project_before_norm:
            x = self.projection(x)
        if self.embedding_norm is not None:
            x = self.embedding_norm.named("embed.ln", x)
        if self.position.after_norm:
            x = self._positioned(x, positions, grids)
        if real is not None:
            x = jnp.where(real[..., None], x, jnp.zeros((), x.dtype))
        x = dropout(x, self.dropout, key)
        if self.projection is None or self.project_first or self.project_before_norm:
            return x
        return self.projection(x)

    def _positioned(self, x, positions, grids):
        """The token embeddings with the position code, which has a name if there is one."""
        scheme = self.position
        table = value_of(self.position_table)
        embed, places = scheme.embed, positions
        if grids is not None:
            embed, places = scheme.embed_grids, grids
        embedded = embed(x, places, table)
        check_result(scheme, embedded, x)
        if embedded is x or not is_wanted("hook_pos_embed"):
            return embedded
        code = embed(jnp.zeros_like(x), places, table)
        tapped = tap("hook_pos_embed", code)
        return embedded if tapped is code else x + tapped

    def vectors(self) -> jax.Array | None:
        """The vectors for distances that the attention of all layers reads, or None."""
        if self.relative_position is None:
            return None
        vectors = self.relative_position.vectors(value_of(self.relative_table))
        return vectors if self.relative_norm is None else self.relative_norm(vectors)

    def bias(self, positions: jax.Array, indices: jax.Array | None = None) -> Bias | None:
        """The bias that the positional schemes add to the attention logits of all layers.

        Args:
            positions: int `[B or 1, T]`.
            indices: int `[B or 1, T]`: the index of each token in its row; None counts from 0.

        Returns:
            The bias, or None.
        """
        scheme = self.relative_position or self.position
        if not scheme.shared:
            return None
        if self.relative_position is not None:
            table = value_of(self.relative_table)
            positions = jnp.arange(positions.shape[1])[None, :] if indices is None else indices
        else:
            table = value_of(self.position_table)
            if self.global_position_table is not None:
                table = jnp.concatenate([table, self.global_position_table[...]])
        return scheme.bias(positions, positions, num_heads=self.num_heads, table=table)


def _table(
    key: jax.Array, position: Position | None, width: int, config: TransformerConfig
) -> nnx.Param | None:
    """The table of a scheme that all layers share, if it has one."""
    if position is None or not position.shared:
        return None
    table = position.table(model_dim=width, num_heads=config.num_heads)
    if table is None:
        return None
    shape, axes = table
    values = position.table_values(shape)
    initial = normal(config.init_std) if values is None else lambda key, shape: values
    return parameter(key, shape, axes, initial, learns=position.learns)
