"""The encoder-only family: BERT, RoBERTa, DistilBERT, ALBERT, ERNIE, by configuration alone."""

import jax

from jaxformer.functional.feedforward import activation
from jaxformer.functional.masks import Mask, Segments
from jaxformer.models.config import EncoderConfig
from jaxformer.models.heads.base import ModelOutput, build_heads, pool
from jaxformer.models.model import Model, assert_tokens
from jaxformer.nn import Embedding, Linear, Transformer, self_block
from jaxformer.nn.layers import normal


class Encoder(Model):
    """A bidirectional model: embedding, blocks of (self-attention, feed-forward), pooler, heads."""

    def __init__(self, key: jax.Array, config: EncoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 4)
        width, std, dim = config.embedding_width, normal(config.init_std), config.model_dim
        self.embedding = Embedding(keys[0], config.vocab_size, width, std, config.padding_id)
        self.transformer = Transformer(
            keys[1],
            config,
            position=config.position,
            make_block=self_block,
            num_layers=config.num_layers,
            width=width,
            type_sizes=config.type_sizes,
        )
        pooler = Linear(keys[2], {"embed": dim}, {"pooled": dim}, std, bias=True)
        self.pooler = None if config.pooler is None else pooler
        self.heads = build_heads(keys[3], config, config.heads)
        self.dtype, self.pooler_activation = config.dtype, config.pooler

    def hidden(
        self,
        inputs: jax.Array,
        *,
        positions: jax.Array | None = None,
        segments: jax.Array | None = None,
        mask: Mask | None = None,
        type_ids: dict[str, jax.Array] | None = None,
        key: jax.Array | None = None,
        capture: list[jax.Array] | None = None,
    ) -> jax.Array:
        """The hidden states.

        Args:
            inputs: int token ids `[B, T]`.
            positions: int `[B or 1, T]`; None counts from 0.
            segments: int `[B, T]`: tokens attend within their own segment; 0 is padding. None: all
                tokens attend to all.
            mask: A mask to combine with, such as one of padding.
            type_ids: int `[B, T]` for "token_types" and "task_types"; a missing one means 0.
            key: The dropout key; None in evaluation.
            capture: A list that receives the states around the blocks, see `Transformer`.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        options = {"positions": positions, "segments": segments, "mask": mask}
        assert_tokens(self.embedding.vocab_size, inputs, **options)
        mask = Mask() if mask is None else mask
        if segments is not None:
            mask = mask & Segments(segments, segments)
        embedded = self.embedding(inputs, self.dtype)
        return self.transformer(
            embedded, mask=mask, positions=positions, type_ids=type_ids, key=key, capture=capture
        )

    def pooled(self, hidden: jax.Array, valid: jax.Array | None = None) -> jax.Array:
        """`[B, T, D] -> [B, D]`: the first real token's state, through the pooler if there is one.

        `valid` is bool `[B, T]`; None: all tokens are real.
        """
        first = pool(hidden, valid, "first")
        if self.pooler is None:
            return first
        return activation(self.pooler_activation)(self.pooler(first))

    def states(self, batch, key=None):
        options = {name: batch[name] for name in ("positions", "segments") if name in batch}
        hidden = self.hidden(batch["inputs"], type_ids=batch, key=key, **options)
        valid = self.valid(batch)
        return ModelOutput(hidden, self.pooled(hidden, valid), self.embedding.kernel(), valid)
