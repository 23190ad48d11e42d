"""The encoder-decoder family: the 2017 Transformer, T5, BART and Marian, by configuration alone."""

from dataclasses import replace

import jax

from jaxformer.functional.dropout import split
from jaxformer.functional.masks import KeyPadding, Mask, Segments, causal
from jaxformer.models.config import EncoderDecoderConfig
from jaxformer.models.heads.base import ModelOutput, build_heads, pool
from jaxformer.models.model import Model, assert_tokens
from jaxformer.nn import Embedding, Transformer, cross_block, self_block
from jaxformer.nn.cache import Cache, CacheShape
from jaxformer.nn.layers import normal


class EncoderDecoder(Model):
    """An encoder, and a causal decoder with cross-attention to the encoder's outputs."""

    segments = "decoder_segments"

    def __init__(self, key: jax.Array, config: EncoderDecoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 5)
        width, std = config.embedding_width, normal(config.init_std)
        self.embedding = Embedding(keys[0], config.vocab_size, width, std, config.padding_id)
        own = Embedding(keys[1], config.vocab_size, width, std, config.padding_id)
        self.decoder_embedding = None if config.share_embeddings else own
        self.encoder = Transformer(
            keys[2],
            config,
            position=config.position,
            make_block=self_block,
            num_layers=config.num_layers,
            width=width,
        )
        self.decoder = Transformer(
            keys[3],
            replace(config, num_layers=config.decoder_layers),
            position=config.decoder_position,
            make_block=cross_block,
            num_layers=config.decoder_layers,
            width=width,
        )
        self.heads = build_heads(keys[4], config, config.heads)
        self.dtype = config.dtype

    @property
    def target_embedding(self) -> Embedding:
        """The decoder's token embedding: its own, or the one shared with the encoder."""
        return self.embedding if self.decoder_embedding is None else self.decoder_embedding

    def encode(
        self,
        inputs: jax.Array,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        capture: list[jax.Array] | None = None,
    ) -> jax.Array:
        """The encoder outputs.

        Args:
            inputs: int token ids `[B, S]`.
            segments: int `[B, S]`, 0 for padding; None: all tokens are real.
            positions: int `[B or 1, S]`; None counts from 0.
            mask: A mask to combine with.
            key: The dropout key; None in evaluation.
            capture: A list that receives the states around the blocks, see `Transformer`.

        Returns:
            `[B, S, D]` in the compute dtype.
        """
        options = {"positions": positions, "segments": segments, "mask": mask}
        assert_tokens(self.embedding.vocab_size, inputs, **options)
        mask = Mask() if mask is None else mask
        if segments is not None:
            mask = mask & Segments(segments, segments)
        embedded = self.embedding(inputs, self.dtype)
        return self.encoder(embedded, mask=mask, positions=positions, key=key, capture=capture)

    def decode(
        self,
        inputs: jax.Array,
        encoder_outputs: jax.Array,
        *,
        encoder_mask: Mask | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        capture: list[jax.Array] | None = None,
    ) -> jax.Array:
        """The decoder's hidden states with the true previous tokens as inputs (teacher forcing).

        Args:
            inputs: int `[B, T]`: the start token, then the targets but the last.
            encoder_outputs: `[B, S, D]`, from `encode`.
            encoder_mask: The cross-attention mask; None allows all.
            segments: int `[B, T]`, 0 for padding; None: all tokens are real.
            positions: int `[B or 1, T]`; None counts from 0.
            mask: A mask to combine with the causal one.
            key: The dropout key; None in evaluation.
            capture: A list that receives the states around the blocks, see `Transformer`.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        options = {"positions": positions, "segments": segments, "mask": mask}
        assert_tokens(self.target_embedding.vocab_size, inputs, **options)
        mask = causal() & (Mask() if mask is None else mask)
        if segments is not None:
            mask = mask & Segments(segments, segments)
        return self.decoder(
            self.target_embedding(inputs, self.dtype),
            mask=mask,
            positions=positions,
            encoder_outputs=encoder_outputs,
            encoder_mask=Mask() if encoder_mask is None else encoder_mask,
            key=key,
            capture=capture,
        )

    @property
    def decoder_transformer(self) -> Transformer:
        """The transformer whose cache `init_cache` makes."""
        return self.decoder

    def init_cache(
        self, shape: CacheShape, encoder_outputs: jax.Array, encoder_mask: Mask | None = None
    ) -> Cache:
        """The decoder's cache before the first token.

        Args:
            shape: The size of the cache.
            encoder_outputs: `[B, S, D]`, from `encode`.
            encoder_mask: The cross-attention mask; None allows all.

        Returns:
            A cache with the keys and values of the encoder outputs.
        """
        encoder_mask = Mask() if encoder_mask is None else encoder_mask
        return self.decoder.init_cache(shape, encoder_outputs, encoder_mask)

    def step(
        self,
        inputs: jax.Array,
        cache: Cache,
        *,
        count: jax.Array | None = None,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """The decoder's hidden states of the next tokens, see `Decoder.step`."""
        assert_tokens(self.target_embedding.vocab_size, inputs)
        embedded = self.target_embedding(inputs, self.dtype)
        return self.decoder.step(embedded, cache, count=count, lengths=lengths)

    def states(self, batch, key=None):
        encoder_key, decoder_key = split(key, 2)
        source, target = _options(batch, ""), _options(batch, "decoder_")
        encoder_outputs = self.encode(batch["inputs"], key=encoder_key, **source)
        encoder_mask = Mask()
        if "segments" in source:
            encoder_mask = KeyPadding(source["segments"] > 0)
        if "segments" in source and "segments" in target:
            encoder_mask = Segments(target["segments"], source["segments"])
        hidden = self.decode(
            batch["decoder_inputs"],
            encoder_outputs,
            encoder_mask=encoder_mask,
            key=decoder_key,
            **target,
        )
        valid, tied = self.valid(batch), self.target_embedding.kernel()
        return ModelOutput(hidden, pool(hidden, valid, "first"), tied, valid)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """The language model's float32 logits `[B, T, V]` from the decoder's hidden states."""
        states = ModelOutput(hidden, tied=self.target_embedding.kernel())
        return self.heads["language_model"].scores(states)

    def __call__(self, inputs: jax.Array, decoder_inputs: jax.Array, **batch) -> jax.Array:
        """Float32 logits `[B, T, V]`; `batch` may hold "segments" and "decoder_segments"."""
        batch = {"inputs": inputs, "decoder_inputs": decoder_inputs, **batch}
        return self.heads["language_model"].scores(self.states(batch))


def _options(batch, prefix: str) -> dict[str, jax.Array]:
    """Segments and positions of one side, where the batch has them."""
    names = ("segments", "positions")
    return {name: batch[prefix + name] for name in names if prefix + name in batch}
