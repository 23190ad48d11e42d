"""The decoder-only family: GPT, Llama, Mistral and others, defined by configuration."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from jaxformer.checks import check_argument, check_field, check_fields
from jaxformer.functional.activations import scope
from jaxformer.functional.masks import Mask, Prefix, causal
from jaxformer.models.flops import TokenFlops, attention_flops, block_products, width_products
from jaxformer.models.heads.base import Batch, Head, ModelOutput, array, build_heads, pool
from jaxformer.models.heads.vocabulary import LanguageModel
from jaxformer.models.model import Model, TextModelConfig
from jaxformer.nn import CrossAttentionConfig, Embedding, Transformer
from jaxformer.nn.cache import Cache, CacheShape
from jaxformer.nn.config import SIZE_OR_NONE
from jaxformer.nn.inputs import assert_tokens, token_mask
from jaxformer.nn.layers import normal
from jaxformer.nn.sublayer import SublayerConfig


@dataclass(frozen=True)
class DecoderConfig(TextModelConfig):
    """Configuration of a decoder-only model (GPT, Llama)."""

    causal: ClassVar[bool] = True
    cross_attention: CrossAttentionConfig | None = None
    """The cross-attention sublayer between the other two, in the decoder of a CompositeConfig. None
    disables cross-attention.
    """
    encoder_dim: int | None = None
    """Width of the encoder outputs; None means model_dim."""
    heads: tuple[Head, ...] = (LanguageModel(),)
    """The heads on the hidden states."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "model", encoder_dim=SIZE_OR_NONE)
        reads = self.cross_attention is not None or self.encoder_dim is None
        check_field(self, "encoder_dim", reads, "None: the model has no cross_attention")

    @property
    def block_sublayers(self) -> tuple[SublayerConfig, ...]:
        """The sublayers of a block, including cross-attention if enabled."""
        if self.cross_attention is None:
            return self.sublayers
        return self.self_attention, self.cross_attention, self.feed_forward

    @property
    def encoder_width(self) -> int:
        return self.model_dim if self.encoder_dim is None else self.encoder_dim

    @property
    def output_width(self) -> int:
        return self.embedding_width if self.embeddings.projection == "both" else self.model_dim

    def build(self, key):
        return Decoder(key, self)

    def input_spec(self, rows, lengths):
        names = ("inputs", *self.type_sizes)
        return {name: array(rows, lengths["inputs"]) for name in names}

    def flops(self, lengths):
        """Returns the FLOPs per token, excluding those of the encoder."""
        layers = self.num_layers
        products = block_products(self, self.block_sublayers, layers)
        products += width_products(self, self.embedding_width)
        products += sum(head.products(self) for head in self.heads)
        attention = attention_flops(self, self.sublayers, layers, lengths["inputs"], causal=True)
        return TokenFlops(2 * products, *attention)


class GenerativeModel(Model):
    """Base class of models with a text decoder; subclasses name the decoder's parts."""

    decoder_scope: ClassVar[str | None] = None
    """The scope of the decoder's activations; None means the scope of the whole model."""
    dtype: jax.typing.DTypeLike
    """The compute dtype."""

    @property
    def target_embedding(self) -> Embedding:
        """The decoder's token embedding."""
        raise NotImplementedError

    @property
    def decoder_transformer(self) -> Transformer:
        """The transformer that `init_cache` creates a cache for."""
        raise NotImplementedError

    def cross_inputs(self, encoder_outputs: jax.Array | None) -> jax.Array | None:
        """Maps encoder outputs to the inputs of cross-attention."""
        return encoder_outputs

    def init_cache(
        self,
        shape: CacheShape,
        encoder_outputs: jax.Array | None = None,
        encoder_mask: Mask | None = None,
    ) -> Cache:
        """Creates the decoder's cache before the first token.

        Args:
            shape: The size of the cache.
            encoder_outputs: `[B, S, D]`, if the decoder has cross-attention.
            encoder_mask: The cross-attention mask; None allows all.

        Returns:
            An empty cache with the keys and values of the encoder outputs.
        """
        encoder_outputs = self.cross_inputs(encoder_outputs)
        encoder_mask = Mask() if encoder_mask is None else encoder_mask
        with self._decoding():
            return self.decoder_transformer.init_cache(shape, encoder_outputs, encoder_mask)

    def step(
        self,
        inputs: jax.Array,
        cache: Cache,
        *,
        count: jax.Array | None = None,
        lengths: jax.Array | None = None,
        positions: jax.Array | None = None,
        mask: Mask | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Returns the decoder's hidden states of the next tokens of each row.

        Processing a row in several steps gives the same states as processing it at once, with type
        0 for all tokens.

        Args:
            inputs: int token ids `[B, T]`.
            cache: The cache of the previous tokens.
            count: int `[B]`: the number of leading tokens that are real; None means all.
            lengths: int `[B]`: the final length of each row, for positional schemes that depend on
                it; None uses the length after this step.
            positions: int `[B or 1, T]`, for schemes that embed or rotate them; None means the
                number of tokens before, including padding.
            mask: A mask of the cache's slots, for padding in it; None allows all.

        Returns:
            `[B, T, D]` in the compute dtype, and the updated cache.
        """
        mask = Mask() if mask is None else mask
        options = {"count": count, "lengths": lengths, "positions": positions, "mask": mask}
        assert_tokens(self.target_embedding.vocab_size, inputs, positions=positions)
        embedded = self.target_embedding(inputs, self.dtype)
        with self._decoding():
            return self.decoder_transformer.step(embedded, cache, **options)

    def decoded(
        self,
        inputs: jax.Array,
        order: Mask,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        mask: Mask | None = None,
        encoder_mask: Mask | None = None,
        **options: Any,
    ) -> jax.Array:
        """Returns the hidden states of whole rows under a base mask, see `Decoder.hidden`."""
        vocab_size = self.target_embedding.vocab_size
        mask = order & token_mask(vocab_size, inputs, positions, segments, mask)
        with self._decoding():
            return self.decoder_transformer(
                self.target_embedding(inputs, self.dtype),
                mask=mask,
                positions=positions,
                encoder_mask=Mask() if encoder_mask is None else encoder_mask,
                **options,
            )

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Returns the float32 vocabulary logits `[B, T, V]` for the decoder's hidden states."""
        outputs = ModelOutput(hidden, tied=self.target_embedding.kernel())
        return self.heads["language_model"].scores(outputs)

    def _outputs_from(self, hidden: jax.Array, batch: Batch) -> ModelOutput:
        """Returns the inputs of the heads for a batch's decoder states `[B, T, D]`."""
        valid = self.valid(batch)
        tied = self.target_embedding.kernel()
        return ModelOutput(hidden, pool(hidden, valid, "first"), tied, valid)

    def _decoding(self) -> AbstractContextManager:
        return nullcontext() if self.decoder_scope is None else scope(self.decoder_scope)


class Decoder(GenerativeModel):
    """A causal model: embedding, blocks of (self-attention, feed-forward), norm, heads.

    With cross-attention, its methods require encoder outputs.
    """

    def __init__(self, key: jax.Array, config: DecoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 3)
        width = config.embedding_width
        std = normal(config.init_std)
        padding_id = config.embeddings.padding_id
        self.embedding = Embedding(keys[0], config.vocab_size, width, std, padding_id)
        self.transformer = config.build_transformer(
            keys[1], width, config.block_sublayers, type_sizes=config.type_sizes
        )
        self.reads_encoder = config.cross_attention is not None
        self.heads = build_heads(keys[2], config, config.heads)
        self.dtype = config.dtype

    def hidden(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        prefix: jax.Array | None = None,
        mask: Mask | None = None,
        type_ids: Mapping[str, jax.Array] | None = None,
        encoder_outputs: jax.Array | None = None,
        encoder_mask: Mask | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the normalized hidden states.

        Args:
            inputs: int token ids `[B, T]`.
            positions: int `[B or 1, T]`; None counts from 0.
            segments: int `[B, T]`: the document of each token, 0 for padding; None is one document.
            prefix: int `[B]`: the number of leading tokens visible to all tokens of the row (prefix
                LM); None means causal attention.
            mask: An additional mask, such as a padding mask.
            type_ids: int `[B, T]` for "token_types" and "task_types"; missing types are 0.
            encoder_outputs: `[B, S, D]`, if the blocks have cross-attention.
            encoder_mask: The cross-attention mask; None allows all.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        self._check_encoder(encoder_outputs)
        return self.decoded(
            inputs,
            causal() if prefix is None else Prefix(prefix),
            positions=positions,
            segments=segments,
            mask=mask,
            type_ids=type_ids,
            encoder_outputs=encoder_outputs,
            encoder_mask=encoder_mask,
            key=key,
        )

    @property
    def target_embedding(self) -> Embedding:
        return self.embedding

    @property
    def decoder_transformer(self) -> Transformer:
        return self.transformer

    def cross_inputs(self, encoder_outputs):
        self._check_encoder(encoder_outputs)
        return encoder_outputs

    def outputs(self, batch, key=None):
        names = ("positions", "segments", "prefix")
        options = {name: batch[name] for name in names if name in batch}
        hidden = self.hidden(batch["inputs"], type_ids=batch, key=key, **options)
        return self._outputs_from(hidden, batch)

    def __call__(self, inputs: jax.Array, **options) -> jax.Array:
        """Returns float32 logits `[B, T, V]`; `options` are those of `hidden`."""
        return self.logits(self.hidden(inputs, **options))

    def _check_encoder(self, encoder_outputs: jax.Array | None) -> None:
        """Raises ArgumentError if encoder outputs are missing or unused."""
        wanted = "[B, S, D]: the model has cross-attention; a CompositeConfig gives it an encoder"
        if not self.reads_encoder:
            wanted = "None: the model has no cross_attention"
        fits = (encoder_outputs is not None) == self.reads_encoder
        shown = encoder_outputs if encoder_outputs is None else encoder_outputs.shape
        check_argument("encoder_outputs", shown, fits, wanted)
