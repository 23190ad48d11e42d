"""The decoder-only family: GPT, Llama, Mistral and others, by configuration alone."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax

from jaxformer.functional.masks import Mask, Prefix, Segments, causal
from jaxformer.models.flops import TokenFlops, attention_flops, block_products, vocabulary_products
from jaxformer.models.heads.base import Head, ModelOutput, array, build_heads, pool
from jaxformer.models.heads.vocabulary import LanguageModel
from jaxformer.models.model import Model, TransformerModelConfig, assert_tokens
from jaxformer.nn import Embedding, Transformer
from jaxformer.nn.cache import Cache, CacheShape
from jaxformer.nn.config import TextConfig
from jaxformer.nn.layers import normal


@dataclass(frozen=True)
class DecoderConfig(TextConfig, TransformerModelConfig):
    """A decoder alone: each token sees those before it (GPT, Llama)."""

    causal: ClassVar[bool] = True
    embedding_projection: Literal["input", "both"] = "input"
    """Where embeddings narrower than the stream are projected: "input": to it, after positions and
    norm, with a bias (ALBERT); "both": to it first, and back at the end, without (OPT 350M)."""
    heads: tuple[Head, ...] = (LanguageModel(),)
    """What is predicted from the hidden states."""

    @property
    def output_width(self) -> int:
        return self.embedding_width if self.embedding_projection == "both" else self.model_dim

    def build(self, key):
        return Decoder(key, self)

    def input_spec(self, rows, lengths):
        return {"inputs": array(rows, lengths["inputs"])}

    def flops(self, lengths):
        blocks = self, self.sublayers, self.num_layers
        products = block_products(*blocks) + vocabulary_products(self)
        attention = attention_flops(*blocks, lengths["inputs"], causal=True)
        return TokenFlops(2 * products, *attention)


class Decoder(Model):
    """A causal model: embedding, blocks of (self-attention, feed-forward), norm, heads."""

    def __init__(self, key: jax.Array, config: DecoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 3)
        width = config.embedding_width
        std = normal(config.init_std)
        self.embedding = Embedding(keys[0], config.vocab_size, width, std, config.padding_id)
        self.transformer = Transformer(
            keys[1],
            config,
            position=config.position,
            make_block=partial(config.block.build, sublayers=config.sublayers),
            num_layers=config.num_layers,
            width=width,
        )
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
        key: jax.Array | None = None,
    ) -> jax.Array:
        """The normalised hidden states.

        Args:
            inputs: int token ids `[B, T]`.
            positions: int `[B or 1, T]`; None counts from 0.
            segments: int `[B, T]`: the document of each token, 0 for padding; None is one document.
            prefix: int `[B]`: the number of leading tokens that are visible to all tokens of the
                row (prefix LM); None: attention is causal.
            mask: A mask to combine with, such as one of padding.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        options = {"positions": positions, "segments": segments, "mask": mask}
        assert_tokens(self.embedding.vocab_size, inputs, **options)
        order = causal() if prefix is None else Prefix(prefix)
        mask = order & (Mask() if mask is None else mask)
        if segments is not None:
            mask = mask & Segments(segments, segments)
        embedded = self.embedding(inputs, self.dtype)
        return self.transformer(embedded, mask=mask, positions=positions, key=key)

    @property
    def decoder_transformer(self) -> Transformer:
        """The transformer whose cache `init_cache` makes."""
        return self.transformer

    def init_cache(self, shape: CacheShape) -> Cache:
        """The cache before the first token."""
        return self.transformer.init_cache(shape)

    def step(
        self,
        inputs: jax.Array,
        cache: Cache,
        *,
        count: jax.Array | None = None,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """The hidden states of the next tokens of each row.

        Reading a row in several steps gives the states that `hidden` gives for the whole row.

        Args:
            inputs: int token ids `[B, T]`.
            cache: The cache of the tokens before.
            count: int `[B]`: how many of the T tokens are real, from the first; None: all.
            lengths: int `[B]`: the length of each row, read or not, for positional schemes that
                depend on it; None: the tokens that have been read after this step.

        Returns:
            `[B, T, D]` in the compute dtype, and the cache with these tokens.
        """
        assert_tokens(self.embedding.vocab_size, inputs)
        embedded = self.embedding(inputs, self.dtype)
        return self.transformer.step(embedded, cache, count=count, lengths=lengths)

    def outputs(self, batch, key=None):
        names = ("positions", "segments", "prefix")
        options = {name: batch[name] for name in names if name in batch}
        hidden = self.hidden(batch["inputs"], key=key, **options)
        valid = self.valid(batch)
        return ModelOutput(hidden, pool(hidden, valid, "first"), self.embedding.kernel(), valid)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """The language model's float32 logits `[B, T, V]` from hidden states."""
        outputs = ModelOutput(hidden, tied=self.embedding.kernel())
        return self.heads["language_model"].scores(outputs)

    def __call__(self, inputs: jax.Array, **options) -> jax.Array:
        """Float32 logits `[B, T, V]`; `options` are those of `hidden`."""
        return self.logits(self.hidden(inputs, **options))
