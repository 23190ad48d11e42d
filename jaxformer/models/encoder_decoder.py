"""The encoder-decoder family: the 2017 Transformer, T5, BART and Marian from data alone."""

from dataclasses import replace

import jax

from jaxformer.functional.dropout import split
from jaxformer.functional.masks import KeyPadding, Mask, Segments, causal
from jaxformer.models.cache import Cache, extend
from jaxformer.models.config import EncoderDecoderConfig
from jaxformer.models.heads.base import ModelOutput, build_heads, pool
from jaxformer.models.model import Model, assert_tokens
from jaxformer.nn import Embedding, Transformer, cross_block, self_block
from jaxformer.nn.cache import CacheShape
from jaxformer.nn.parameter import normal


class EncoderDecoder(Model):
    """An encoder, and a causal decoder whose blocks attend to the encoder's output."""

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
        """What the decoder looks tokens up in: its own table, or the one that both share."""
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
        """The encoder's output.

        Args:
            inputs: int token ids `[B, S]`.
            segments: int `[B, S]`, 0 for padding; None: all tokens are real.
            positions: int `[B or 1, S]`; None counts from 0.
            mask: What is allowed besides.
            key: The dropout key; None in evaluation.
            capture: Receives the states before, between and after the blocks, see `Transformer`.

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
        memory: jax.Array,
        *,
        memory_mask: Mask | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
        capture: list[jax.Array] | None = None,
    ) -> jax.Array:
        """The decoder's hidden states with the true previous tokens as inputs (teacher forcing).

        Args:
            inputs: int `[B, T]`: the start token, then the targets but the last.
            memory: `[B, S, D]`, from `encode`.
            memory_mask: Which places of the memory each token sees; None: all.
            segments: int `[B, T]`, 0 for padding; None: all tokens are real.
            positions: int `[B or 1, T]`; None counts from 0.
            mask: What is allowed besides causality.
            key: The dropout key; None in evaluation.
            capture: Receives the states before, between and after the blocks, see `Transformer`.

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
            memory=memory,
            memory_mask=Mask() if memory_mask is None else memory_mask,
            key=key,
            capture=capture,
        )

    @property
    def reader(self) -> Transformer:
        """The blocks that read the tokens one after another."""
        return self.decoder

    def start(self, shape: CacheShape, memory: jax.Array, memory_mask: Mask | None = None) -> Cache:
        """A cache with the keys and values of the memory, in which no token is yet.

        Args:
            shape: How much is to be kept.
            memory: `[B, S, D]`, from `encode`.
            memory_mask: Which places of the memory each token sees; None: all.
        """
        return Cache.empty(shape, self.decoder.start(shape, memory), memory_mask)

    def extend(
        self,
        inputs: jax.Array,
        cache: Cache,
        *,
        count: jax.Array | None = None,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """The decoder's hidden states of the next tokens, see `Decoder.extend`."""
        assert_tokens(self.target_embedding.vocab_size, inputs)
        embedded = self.target_embedding(inputs, self.dtype)
        return extend(self.decoder, embedded, cache, count, lengths)

    def states(self, batch, key=None):
        encoder_key, decoder_key = split(key, 2)
        source, target = _options(batch, ""), _options(batch, "decoder_")
        memory = self.encode(batch["inputs"], key=encoder_key, **source)
        memory_mask = Mask()
        if "segments" in source:
            memory_mask = KeyPadding(source["segments"] > 0)
        if "segments" in source and "segments" in target:
            memory_mask = Segments(target["segments"], source["segments"])
        hidden = self.decode(
            batch["decoder_inputs"], memory, memory_mask=memory_mask, key=decoder_key, **target
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
