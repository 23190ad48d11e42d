"""The encoder-only family: BERT, RoBERTa, DistilBERT, ALBERT, ERNIE, defined by configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxformer.checks import check_field
from jaxformer.functional.arrays import assert_axes
from jaxformer.functional.feedforward import activation
from jaxformer.functional.masks import Mask, real_tokens
from jaxformer.functional.norms import LayerNorm, Norm
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.schemes import Learned
from jaxformer.models.flops import TokenFlops, attention_flops, block_products, width_products
from jaxformer.models.heads.base import Head, ModelOutput, array, build_heads, pool
from jaxformer.models.heads.vocabulary import MaskedLanguageModel
from jaxformer.models.model import Model, TextModelConfig, check_default_embeddings
from jaxformer.models.protein import ContactHead, TokenDropout
from jaxformer.nn import (
    MLP,
    BlockConfig,
    DotProductAttention,
    Embedding,
    FeedForwardConfig,
    Linear,
    SelfAttentionConfig,
    TokenEmbeddings,
    VocabularyLogits,
)
from jaxformer.nn.inputs import token_mask
from jaxformer.nn.layers import normal
from jaxformer.nn.residual import PostNorm, Residual


@dataclass(frozen=True)
class EncoderConfig(TextModelConfig):
    """Configuration of an encoder-only model (BERT, RoBERTa, ALBERT, ERNIE)."""

    windows_ahead: ClassVar[bool] = True
    """Windows are symmetric."""
    position: Position = Learned(max_length=512)
    """Learned, Sinusoidal, RoPE, T5Bias or another scheme."""
    norm: Norm = LayerNorm(eps=1e-12)
    """LayerNorm or RMSNorm."""
    residual: Residual = PostNorm()
    """The residual arrangement: PostNorm, PreNorm, SandwichNorm, Parallel."""
    embeddings: TokenEmbeddings = TokenEmbeddings(norm=LayerNorm(eps=1e-12))
    """Width, padding, types, norm, scale and dropout of the embeddings."""
    self_attention: SelfAttentionConfig = DotProductAttention(
        bias=True, output_bias=True, dropout=0.1
    )
    """DotProductAttention or another token-mixing sublayer."""
    feed_forward: FeedForwardConfig = MLP(activation="gelu", gated=False, bias=True)
    """The position-wise sublayer: MLP or a user-defined one."""
    logits: VocabularyLogits = VocabularyLogits(bias=True)
    """Bias, scale and bound of logits over the vocabulary."""
    token_dropout: TokenDropout | None = None
    """Zeroes the embeddings of mask tokens and rescales the others (ESM); None disables it."""
    contact_head: bool = False
    """Whether the model predicts residue contacts from attention weights (ESM); its parameters are
    not trained.
    """
    depth_scaled_init: bool = False
    """Whether projections into the residual stream have smaller initial weights (GPT-2)."""
    dropout: float = 0.1
    """Dropout rate of the embeddings and of every sublayer's output."""

    first_block: BlockConfig | None = None
    """The first block, if it differs from the others: ConvolutionBlock (DeBERTa 2). `windows` must
    then have an entry for every layer.
    """
    pooler: Literal["tanh", "relu", "gelu"] | None = None
    """Activation of a dense layer on the first token's state for classifiers: "tanh" (BERT), "relu"
    (DistilBERT) or "gelu" (ELECTRA). None uses the state directly.
    """
    heads: tuple[Head, ...] = (MaskedLanguageModel(),)
    """The heads on the hidden states."""

    def __post_init__(self):
        super().__post_init__()
        check_default_embeddings(self, "projection")
        apart = self.first_block is None or len(self.windows) == self.num_layers
        check_field(self, "first_block", apart, "None, unless windows has an entry for every layer")

    def build(self, key):
        return Encoder(key, self)

    def input_spec(self, rows, lengths):
        names = ("inputs", "segments", *self.type_sizes)
        return {name: array(rows, lengths["inputs"]) for name in names}

    def flops(self, lengths):
        blocks = self, self.sublayers, self.num_layers
        first = 0 if self.first_block is None else self.first_block.products(self)
        products = block_products(*blocks) + first + sum(head.products(self) for head in self.heads)
        products += width_products(self, self.embedding_width)
        attention = attention_flops(*blocks, lengths["inputs"], causal=False)
        return TokenFlops(2 * products, *attention)


class Encoder(Model):
    """A bidirectional model: embedding, blocks of (self-attention, feed-forward), pooler, heads."""

    def __init__(self, key: jax.Array, config: EncoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 4)
        width = config.embedding_width
        std = normal(config.init_std)
        dim = config.model_dim
        padding_id = config.embeddings.padding_id
        self.embedding = Embedding(keys[0], config.vocab_size, width, std, padding_id)
        self.transformer = config.build_transformer(
            keys[1], width, first_block=config.first_block, type_sizes=config.type_sizes
        )
        has_pooler = config.pooler is not None
        axes = ({"embed": dim}, {"pooled": dim})
        self.pooler = Linear(keys[2], *axes, std, bias=True) if has_pooler else None
        self.heads = build_heads(keys[3], config, config.heads)
        fresh = jax.random.fold_in(key, 1)
        self.contact_head = ContactHead(fresh, config) if config.contact_head else None
        self.dtype = config.dtype
        self.pooler_activation = config.pooler
        self.token_dropout = config.token_dropout

    def hidden(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        mask: Mask | None = None,
        type_ids: Mapping[str, jax.Array] | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the hidden states.

        Args:
            inputs: int token ids `[B, T]`.
            positions: int `[B or 1, T]`; None counts from 0.
            segments: int `[B, T]`: tokens attend within their segment; 0 is padding. None means
                full attention.
            mask: An additional mask, such as a padding mask.
            type_ids: int `[B, T]` for "token_types" and "task_types"; missing types are 0.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        mask = token_mask(self.embedding.vocab_size, inputs, positions, segments, mask)
        embedded = self.embedding(inputs, self.dtype)
        if self.token_dropout is not None:
            embedded = self.token_dropout(embedded, inputs, real_tokens(mask), segments)
        return self.transformer(
            embedded, mask=mask, positions=positions, type_ids=type_ids, key=key
        )

    def pooled(
        self,
        hidden: jax.Array,
        valid: jax.Array | None = None,
        places: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the state of the first real token, after the pooler if there is one.

        Args:
            hidden: `[B, T, D]`.
            valid: bool `[B, T]`: the real tokens; None means all.
            places: int `[B, C]`: the starts of several texts in a row; None means a single text.

        Returns:
            `[B, D]`, or `[B, C, D]` with `places`.
        """
        if places is None:
            first = pool(hidden, valid, "first")
        else:
            assert_axes(hidden=(hidden, "B T D"), choice_places=(places, "B C"))
            first = jnp.take_along_axis(hidden, places[..., None], axis=1)
        if self.pooler is None:
            return first
        return activation(self.pooler_activation)(self.pooler(first))

    def outputs(self, batch, key=None):
        options = {name: batch[name] for name in ("positions", "segments") if name in batch}
        hidden = self.hidden(batch["inputs"], type_ids=batch, key=key, **options)
        valid = self.valid(batch)
        pooled = self.pooled(hidden, valid, batch.get("choice_places"))
        return ModelOutput(hidden, pooled, self.embedding.kernel(), valid)
