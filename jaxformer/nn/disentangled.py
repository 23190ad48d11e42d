"""DeBERTa's attention, which depends on the contents of tokens and on their distances."""

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import per_device, spec_of
from jaxformer.functional.attention.distances import DistanceTerms
from jaxformer.functional.dropout import dropout
from jaxformer.functional.masks import real_tokens
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.distances import DistanceEmbedding
from jaxformer.io.serialization import summary
from jaxformer.nn.attention import Attention, DotProductAttention, SelfAttention
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.layers import Linear, normal


class AttentionWithoutPadding(Attention):
    """Attention in which padding weighs all tokens equally, instead of the real ones by their
    scores.

    Only the states of padding depend on it; a classifier in transformers reads one if a row begins
    with padding.
    """

    def attended(self, query_BTNH, key_BSKH, value_BSKH, *, mask, **options):
        """The mean of all values where a mask of padding hides the token itself."""
        output_BTNH = super().attended(query_BTNH, key_BSKH, value_BSKH, mask=mask, **options)
        real = real_tokens(mask)
        if real is None:
            return output_BTNH
        mean_B1KH = jnp.mean(value_BSKH, axis=1, keepdims=True, dtype=jnp.float32)
        groups = self.num_heads // self.kv_heads
        mean_B1NH = per_device(lambda x: jnp.repeat(x, groups, axis=2), mean_B1KH)
        alike = mean_B1NH.astype(output_BTNH.dtype)
        return jnp.where(real[..., None, None], output_BTNH, alike)


class DisentangledSelfAttention(SelfAttention):
    """Attention whose scores include products with projected vectors of the distance."""

    def __init__(
        self,
        key: jax.Array,
        config: TransformerConfig,
        position: Position,
        window: int | None,
        terms: "DisentangledAttention",
    ):
        """Declares the attention, and the projections of the vectors unless they are shared."""
        attention = partial(AttentionWithoutPadding, settings=terms)
        super().__init__(key, config, position, window, attention)
        keys = jax.random.split(jax.random.fold_in(key, 2))
        model = {"embed": config.model_dim}
        head = {"head_dim": config.head_width}
        std, bias = normal(config.init_std), terms.bias
        heads = {"heads": config.num_heads} | head
        kv_heads = {"kv_heads": config.kv_heads} | head
        own_key = own_query = None
        if terms.content_to_position and not terms.share_projections:
            own_key = Linear(keys[0], model, kv_heads, std, bias=bias and terms.key_bias)
        if terms.position_to_content and not terms.share_projections:
            own_query = Linear(keys[1], model, heads, std, bias=bias)
        self.position_key, self.position_query = own_key, own_query
        if terms.scale is None:
            self.attention.scale = terms.default_scale(config.head_width)
        self.terms, self.dropout = terms, config.dropout

    def _distances(self, x, context, key):
        """The vectors of all distances of a row, projected as keys and as queries."""
        terms, attention = self.terms, self.attention
        if not (terms.content_to_position or terms.position_to_content):
            return None
        rows = self.scheme.rows(x.shape[1], x.shape[1])
        first, last = int(rows.min()), int(rows.max())
        key = None if key is None else jax.random.fold_in(key, 1)
        vectors = dropout(context.vectors[first : last + 1].astype(x.dtype), self.dropout, key)

        def projected(wanted: bool, own: Linear | None, shared: Linear) -> jax.Array | None:
            """A vector for each distance; several distances may have the same."""
            if not wanted:
                return None
            # A row of tokens: XLA's CPU backend has no kernel for the gradient of a bare matrix.
            found = (shared if own is None else own)(vectors[None])[0]
            spec = spec_of(found)
            spec = None if spec is None else PartitionSpec(None, *spec[1:])
            return found.at[rows - first].get(out_sharding=spec)

        return DistanceTerms(
            projected(terms.content_to_position, self.position_key, attention.key),
            projected(terms.position_to_content, self.position_query, attention.query),
            x.shape[1],
        )


@dataclass(frozen=True)
class DisentangledAttention(DotProductAttention):
    r"""DeBERTa's attention, whose scores also depend on the distance of the query and the key.

    .. math:: s\, (q_i \cdot k_j + q_i \cdot W_k r_{\delta(i, j)} + k_j \cdot W_q r_{\delta(i, j)}),
              \qquad s = \frac{1}{\sqrt{(1 + n) H}}

    with n of the two terms of distances, and the vectors r of `relative_position`, a
    `DistanceEmbedding`. Without these terms it is plain attention. For encoders: it has no cache.

    References:
        He et al., DeBERTa, 2021 (https://arxiv.org/abs/2006.03654);
        He et al., DeBERTaV3, 2023 (https://arxiv.org/abs/2111.09543).
    """

    content_to_position: bool = True
    """Whether queries are multiplied by the vectors, projected as keys (c2p)."""
    position_to_content: bool = True
    """Whether keys are multiplied by the vectors, projected as queries (p2c)."""
    share_projections: bool = False
    """Whether the kernels of the tokens' keys and queries project the vectors (DeBERTa 2 and 3),
    not separate ones."""
    bias: bool = field(default=True, kw_only=True)
    """Biases of the query, key and value projections."""
    output_bias: bool = field(default=True, kw_only=True)
    """Bias of the output projection."""
    dropout: float = field(default=0.1, kw_only=True)
    """Dropout of the probabilities."""

    def check(self, config):
        if isinstance(config.position, DistanceEmbedding):
            raise ConfigError(
                f"model.position = {config.position}: must be another scheme; use "
                "relative_position for it, and NoPosition()"
            )
        scheme = config.relative_position
        terms = self.content_to_position or self.position_to_content
        if not isinstance(scheme, DistanceEmbedding) and (terms or scheme is not None):
            raise ConfigError(
                f"model.relative_position = {scheme}: must be a DistanceEmbedding with "
                f"self_attention = {summary(self)}"
            )
        if not config.windows_ahead:
            raise ConfigError(
                f"model.self_attention = {summary(self)}: must be another in a model that is not "
                "an encoder of text; use DotProductAttention()"
            )

    def for_decoder(self):
        return self.plain()

    def default_scale(self, head_dim: int) -> float:
        """The factor s for heads of this width, unless `scale` gives another."""
        terms = 1 + self.content_to_position + self.position_to_content
        return (head_dim * terms) ** -0.5

    def build(self, key, config, position, window):
        return DisentangledSelfAttention(key, config, position, window, self)

    def products(self, config):
        # The vectors are projected once for all tokens.
        return DotProductAttention().products(config)

    def products_per_pair(self, config):
        terms = self.content_to_position + self.position_to_content
        return super().products_per_pair(config) + terms * config.num_heads * config.head_width
