"""The encoder-decoder family: the 2017 Transformer, T5, BART, Marian, by configuration."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax

from jaxformer.checks import POSITIVE, between, check_field, check_fields, optional
from jaxformer.functional.activations import scope
from jaxformer.functional.dropout import split
from jaxformer.functional.masks import KeyPadding, Mask, Segments, causal
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.schemes import T5Bias
from jaxformer.models.decoder import GenerativeModel
from jaxformer.models.flops import (
    TokenFlops,
    attention_flops,
    block_products,
    vocabulary_products,
    width_products,
)
from jaxformer.models.heads.base import Batch, Head, array, build_heads
from jaxformer.models.heads.vocabulary import LanguageModel
from jaxformer.models.model import TextModelConfig, check_default_embeddings
from jaxformer.nn import CrossAttentionConfig, DotProductCrossAttention, Embedding, Transformer
from jaxformer.nn.config import MOST_LAYERS, SIZE_OR_NONE
from jaxformer.nn.inputs import token_mask
from jaxformer.nn.layers import normal

_ENCODER_SIZES = {
    "encoder_dim": "model_dim",
    "encoder_heads": "num_heads",
    "encoder_mlp_dim": "mlp_dim",
}
"""Fields for encoder sizes -> the fields that they override."""


@dataclass(frozen=True)
class EncoderDecoderConfig(TextModelConfig):
    """Configuration of an encoder-decoder model (the 2017 Transformer, T5, BART)."""

    required: ClassVar[tuple[str, ...]] = ("inputs", "decoder_inputs")
    is_encoder_decoder: ClassVar[bool] = True
    windows_ahead: ClassVar[bool] = True
    """Windows apply to the encoder and are symmetric."""
    num_decoder_layers: int | None = None
    """Number of decoder blocks; None means num_layers, as in the encoder."""
    encoder_dim: int | None = None
    """Width of the encoder's residual stream, if not model_dim; cross-attention projects keys and
    values from it. The encoder projects the rows of a shared embedding table.
    """
    encoder_heads: int | None = None
    """Query heads of the encoder, if not num_heads. Cross-attention uses those of the decoder."""
    encoder_mlp_dim: int | None = None
    """Hidden width of the encoder's feed-forward layers, if not mlp_dim."""
    decoder_embedding_scale: float | None = None
    """Multiplier of the decoder's embeddings; None means embeddings.scale, as in the encoder."""
    position: Position = T5Bias(bidirectional=True)
    """The encoder's positional scheme."""
    decoder_position: Position = T5Bias(bidirectional=False)
    """The decoder's positional scheme."""
    share_embeddings: bool = True
    """Whether encoder and decoder share the embedding table."""
    cross_attention: CrossAttentionConfig = DotProductCrossAttention()
    """The decoder's cross-attention sublayer: DotProductCrossAttention or a user-defined one."""
    heads: tuple[Head, ...] = (LanguageModel(),)
    """The heads on the decoder's hidden states."""

    def __post_init__(self):
        super().__post_init__()
        check_default_embeddings(self, "projection", "token_types", "task_types")
        if self.num_decoder_layers is not None:
            check_fields(self, "model", num_decoder_layers=between(1, MOST_LAYERS))
            fits = self.num_decoder_layers % self.layer_repeats == 0
            wanted = f"a multiple of layer_repeats = {self.layer_repeats}"
            check_field(self, "num_decoder_layers", fits, wanted)
        check_fields(self, "model", decoder_embedding_scale=optional(POSITIVE))
        self.decoder_position.validate_sizes(model_dim=self.model_dim, head_dim=self.head_width)
        if any(getattr(self, name) is not None for name in _ENCODER_SIZES):
            self._check_encoder()

    def _check_encoder(self):
        check_fields(self, "model", **dict.fromkeys(_ENCODER_SIZES, SIZE_OR_NONE))
        heads = self.num_heads if self.encoder_heads is None else self.encoder_heads
        fits = self.head_dim is not None or self.encoder_width % heads == 0
        if self.encoder_heads is None:
            wanted = f"a multiple of num_heads = {heads}, or set head_dim"
            check_field(self, "encoder_dim", fits, wanted, "model")
        wanted = f"a divisor of {self.encoder_width}, the encoder's width, or set head_dim"
        check_field(self, "encoder_heads", fits, wanted, "model")
        grouped = self.num_kv_heads is None or heads % self.num_kv_heads == 0
        wanted = f"a multiple of num_kv_heads = {self.num_kv_heads}"
        check_field(self, "encoder_heads", grouped, wanted, "model")
        encoder = self.encoder
        self.position.validate_sizes(model_dim=encoder.model_dim, head_dim=encoder.head_width)

    @property
    def encoder_width(self) -> int:
        """The width of the encoder outputs."""
        return self.model_dim if self.encoder_dim is None else self.encoder_dim

    @property
    def encoder(self) -> "EncoderDecoderConfig":
        """The configuration of the encoder's blocks."""
        given = {name: getattr(self, name) for name in _ENCODER_SIZES}
        own = {_ENCODER_SIZES[name]: size for name, size in given.items() if size is not None}
        return replace(self, **own, **dict.fromkeys(given)) if own else self

    @property
    def encoder_embedding_width(self) -> int:
        """The width of the encoder's embedding table, which the decoder may share."""
        return (self if self.share_embeddings else self.encoder).embedding_width

    @property
    def decoder(self) -> "EncoderDecoderConfig":
        """The configuration of the decoder's blocks, without windows, and input layer."""
        own, scale = self.embeddings, self.decoder_embedding_scale
        layers = self.decoder_layers
        apart = self.feed_forward.first_layers or not self.residual.first_norm
        return replace(
            self,
            num_layers=layers,
            embeddings=own if scale is None else replace(own, scale=scale),
            windows=(None,) * (layers if apart else 1),
            window_position=None,
            rope_layers=None,
        )

    @property
    def tensor_sizes(self) -> dict[str, int]:
        own = {"encoder_heads": self.encoder_heads, "encoder_mlp_dim": self.encoder_mlp_dim}
        return {name: size for name, size in own.items() if size is not None}

    @property
    def stacks(self):
        return self.encoder, self.decoder

    @property
    def decoder_layers(self) -> int:
        """The number of blocks of the decoder."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    def build(self, key):
        return EncoderDecoder(key, self)

    def input_spec(self, rows, lengths):
        source = {name: array(rows, lengths["inputs"]) for name in ("inputs", "segments")}
        names = ("decoder_inputs", "decoder_segments")
        return source | {name: array(rows, lengths["decoder_inputs"]) for name in names}

    def flops(self, lengths):
        """Returns the FLOPs per *input* token, including those of the targets."""
        length, layers = lengths["inputs"], self.decoder_layers
        share = lengths["decoder_inputs"] / length
        sublayers, cross = self.sublayers, self.cross_attention
        blocks = self.encoder, sublayers, self.num_layers
        # Cross-attention projects queries and outputs per target, keys and values per input.
        products = block_products(*blocks) + cross.encoder_products(self) * layers
        products += share * block_products(self, (*sublayers, cross), layers)
        products += share * vocabulary_products(self)
        products += width_products(self.encoder, self.encoder_embedding_width)
        products += share * width_products(self.decoder, self.embedding_width)
        pairs = 2 * cross.products_per_pair(self) * layers * length * share
        encoder = attention_flops(*blocks, length, causal=False)
        targets = lengths["decoder_inputs"]
        decoder = attention_flops(self.decoder, sublayers, layers, targets, causal=True)
        attention, causal = (e + share * d + pairs for e, d in zip(encoder, decoder, strict=True))
        return TokenFlops(2 * products, attention, causal)

    def check_lengths(self, lengths):
        super().check_lengths(lengths)
        if "decoder_inputs" in lengths:
            self.decoder_position.validate_length(lengths["decoder_inputs"])


class Seq2SeqModel(GenerativeModel):
    """Base class of models with an encoder and a decoder."""

    segments = "decoder_segments"
    decoder_scope = "decoder"
    source = "inputs"
    """The array of a batch that the encoder reads."""

    def decode(self, inputs: jax.Array, encoder_outputs: jax.Array, **options: Any) -> jax.Array:
        """Returns the decoder's hidden states `[B, T, D]` with teacher forcing."""
        raise NotImplementedError

    def outputs(self, batch, key=None):
        encoder_key, decoder_key = split(key, 2)
        encoder_outputs, real = self._encoded(batch, encoder_key)
        encoder_mask = Mask() if real is None else KeyPadding(real)
        if "segments" in batch and "decoder_segments" in batch:
            encoder_mask = Segments(batch["decoder_segments"], batch["segments"])
        hidden = self.decode(
            batch["decoder_inputs"],
            encoder_outputs,
            encoder_mask=encoder_mask,
            key=decoder_key,
            **_options(batch, "decoder_"),
        )
        return self._outputs_from(hidden, batch)

    def __call__(self, inputs: jax.Array, decoder_inputs: jax.Array, **batch) -> jax.Array:
        """Returns float32 logits `[B, T, V]` for the inputs of the encoder, such as ids `[B, S]`.

        `batch` may have other arrays that the model reads: "segments" and "decoder_segments".
        """
        batch = {self.source: inputs, "decoder_inputs": decoder_inputs, **batch}
        return self.heads["language_model"].scores(self.outputs(batch))

    def _encoded(self, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """Returns the encoder outputs of a batch, and which are real; None means all."""
        raise NotImplementedError


class EncoderDecoder(Seq2SeqModel):
    """An encoder, and a causal decoder with cross-attention to the encoder's outputs."""

    def __init__(self, key: jax.Array, config: EncoderDecoderConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 5)
        width = config.embedding_width
        std = normal(config.init_std)
        shared = config.share_embeddings
        encoder = config.encoder
        encoder_width = config.encoder_embedding_width
        table = std, config.embeddings.padding_id
        self.embedding = Embedding(keys[0], config.vocab_size, encoder_width, *table)
        own = None if shared else Embedding(keys[1], config.vocab_size, width, *table)
        self.decoder_embedding = own
        self.encoder = encoder.build_transformer(keys[2], encoder_width)
        own_attention = config.self_attention.for_decoder()
        sublayers = own_attention, config.cross_attention, config.feed_forward
        position = config.decoder_position
        self.decoder = config.decoder.build_transformer(
            keys[3], width, sublayers, position=position
        )
        self.heads = build_heads(keys[4], config, config.heads)
        self.dtype = config.dtype

    @property
    def target_embedding(self) -> Embedding:
        """The decoder's token embedding, which may be shared with the encoder."""
        return self.embedding if self.decoder_embedding is None else self.decoder_embedding

    def encode(
        self,
        inputs: jax.Array,
        *,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        mask: Mask | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the encoder outputs.

        Args:
            inputs: int token ids `[B, S]`.
            segments: int `[B, S]`, 0 for padding; None means that all tokens are real.
            positions: int `[B or 1, S]`; None counts from 0.
            mask: An additional mask.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, S, D]` in the compute dtype.
        """
        mask = token_mask(self.embedding.vocab_size, inputs, positions, segments, mask)
        embedded = self.embedding(inputs, self.dtype)
        with scope("encoder"):
            return self.encoder(embedded, mask=mask, positions=positions, key=key)

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
    ) -> jax.Array:
        """Returns the decoder's hidden states with teacher forcing.

        Args:
            inputs: int `[B, T]`: the start token, then all targets but the last.
            encoder_outputs: `[B, S, D]`, from `encode`.
            encoder_mask: The cross-attention mask; None allows all.
            segments: int `[B, T]`, 0 for padding; None means that all tokens are real.
            positions: int `[B or 1, T]`; None counts from 0.
            mask: A mask to combine with the causal mask.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        options = {"positions": positions, "segments": segments, "mask": mask, "key": key}
        cross = {"encoder_outputs": encoder_outputs, "encoder_mask": encoder_mask}
        return self.decoded(inputs, causal(), **options, **cross)

    @property
    def decoder_transformer(self) -> Transformer:
        return self.decoder

    def _encoded(self, batch, key):
        real = batch["segments"] > 0 if "segments" in batch else None
        return self.encode(batch["inputs"], key=key, **_options(batch, "")), real


def _options(batch, prefix: str) -> dict[str, jax.Array]:
    """Returns the segments and positions of one side, if the batch contains them."""
    names = ("segments", "positions")
    return {name: batch[prefix + name] for name in names if prefix + name in batch}
