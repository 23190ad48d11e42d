"""Composite models: any encoder with a decoder that attends to its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxformer.checks import check_field, check_types
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.functional.activations import scope
from jaxformer.io.components import moved_fields
from jaxformer.models.decoder import DecoderConfig
from jaxformer.models.encoder import EncoderConfig
from jaxformer.models.encoder_decoder import Seq2SeqModel
from jaxformer.models.flops import TokenFlops
from jaxformer.models.heads.base import array
from jaxformer.models.model import ModelConfig
from jaxformer.models.spectrogram import SpectrogramConfig
from jaxformer.models.vision import VisionConfig
from jaxformer.models.waveform import WaveformConfig
from jaxformer.nn import Embedding, Linear, Transformer
from jaxformer.nn.layers import normal

_TARGETS = ("decoder_inputs", "decoder_segments")


@dataclass(frozen=True)
class CompositeConfig(ModelConfig):
    """An encoder and a decoder with separate configurations (bert2gpt2, ViT and GPT-2)."""

    is_encoder_decoder: ClassVar[bool] = True
    encoder: EncoderConfig | VisionConfig | SpectrogramConfig | WaveformConfig
    """The encoder, without heads."""
    decoder: DecoderConfig
    """The decoder, with cross-attention. If the width of the encoder outputs differs from the input
    width of its cross-attention, a linear layer projects them.
    """

    def __post_init__(self):
        check_types(self)
        bare = "(): the decoder predicts"
        check_field(self.encoder, "heads", not self.encoder.heads, bare, "model.encoder")
        reads = self.decoder.cross_attention is not None
        wanted = "cross-attention such as DotProductCrossAttention()"
        check_field(self.decoder, "cross_attention", reads, wanted, "model.decoder")
        same = self.encoder.compute_dtype == self.decoder.compute_dtype
        wanted = f"that of the encoder, {self.encoder.compute_dtype!r}"
        check_field(self.decoder, "compute_dtype", same, wanted, "model.decoder")

    @property
    def parts(self):
        return {"encoder": self.encoder, "decoder": self.decoder}

    @property
    def stacks(self):
        return self.encoder, self.decoder

    @property
    def projects(self) -> bool:
        """Whether a linear layer projects the encoder outputs to the input width of
        cross-attention.
        """
        return self.encoder.output_width != self.decoder.encoder_width

    @property
    def required(self) -> tuple[str, ...]:
        return (*self.encoder.required, "decoder_inputs")

    @property
    def input_fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.encoder.input_fields, "vocab_size")))

    def with_fields(self, **changes: Any) -> "CompositeConfig":
        """Returns a copy with fields replaced in parts that have them; `heads` in the decoder."""
        parts = self.parts | {name: changes.pop(name) for name in self.parts if name in changes}
        return replace(self, **with_shared_fields(parts, changes))

    def build(self, key):
        return Composite(key, self)

    def input_spec(self, rows, lengths):
        source = self.encoder.input_spec(rows, lengths)
        return source | {name: array(rows, lengths["decoder_inputs"]) for name in _TARGETS}

    def row_lengths(self, lengths):
        return {**lengths, **self.encoder.row_lengths(lengths)}

    def flops(self, lengths):
        """Returns the FLOPs per encoder token, including those of the targets."""
        length, targets = lengths["inputs"], lengths["decoder_inputs"]
        share = targets / length
        states = self.encoder.output_length(length)
        layers = self.decoder.num_layers
        encoder = self.encoder.flops(lengths)
        decoder = self.decoder.flops({"inputs": targets})
        cross = self.decoder.cross_attention
        # Keys and values are projected once for each state of the encoder.
        source = cross.encoder_products(self.decoder) * layers
        if self.projects:
            source += self.encoder.output_width * self.decoder.encoder_width
        pairs = 2 * cross.products_per_pair(self.decoder) * layers * states * share
        return TokenFlops(
            encoder.products + 2 * source * states / length + share * decoder.products,
            encoder.attention + share * decoder.attention + pairs,
            encoder.causal_attention + share * decoder.causal_attention + pairs,
        )

    def check_lengths(self, lengths):
        self.encoder.check_lengths(self.encoder.row_lengths(lengths))
        if "decoder_inputs" in lengths:
            self.decoder.check_lengths({"inputs": lengths["decoder_inputs"]})

    # The interface of every model with a decoder --------------------------------------------------

    heads = property(attrgetter("decoder.heads"), doc="The heads on the decoder's hidden states.")
    vocab_size = property(attrgetter("decoder.vocab_size"), doc="Vocabulary size (V).")
    position = property(attrgetter("encoder.position"), doc="The encoder's positional scheme.")
    decoder_position = property(
        attrgetter("decoder.position"), doc="The decoder's positional scheme."
    )
    num_layers = property(attrgetter("encoder.num_layers"), doc="Blocks of the encoder.")
    decoder_layers = property(attrgetter("decoder.num_layers"), doc="Blocks of the decoder.")
    model_dim = property(attrgetter("decoder.model_dim"), doc="Width of the decoder's stream (D).")
    num_heads = property(attrgetter("decoder.num_heads"), doc="Query heads of the decoder (N).")
    kv_heads = property(attrgetter("decoder.kv_heads"), doc="Key/value heads of the decoder (K).")
    head_width = property(attrgetter("decoder.head_width"), doc="Width of the decoder's heads (H).")
    mlp_dim = property(attrgetter("decoder.mlp_dim"), doc="Hidden width of the decoder (F).")
    layer_kinds = property(
        attrgetter("decoder.layer_kinds"),
        doc="The windows of the decoder's layers, and whether they rotate queries and keys.",
    )
    compute_dtype = property(
        attrgetter("decoder.compute_dtype"), doc="The dtype of activations, in both stacks."
    )
    dtype = property(attrgetter("decoder.dtype"), doc="The compute dtype.")
    remat = property(attrgetter("decoder.remat"), doc="The decoder's rematerialization policy.")


def with_shared_fields(parts: Mapping[str, ModelConfig], changes: Mapping[str, Any]) -> dict:
    """Returns submodels with fields replaced in each that has them; `heads` are the last one's."""
    known = {
        name: {*moved_fields(type(part)), *(field.name for field in fields(part))}
        for name, part in parts.items()
    }
    for name in list(parts)[:-1]:
        known[name].discard("heads")
    names = set.union(*known.values())

    def changed(part: str) -> ModelConfig:
        own = {path: changes[path] for path in changes if path.partition(".")[0] in known[part]}
        return parts[part].with_fields(**own)

    for path in changes:
        if path.partition(".")[0] not in names:
            nobody = " nor ".join(f"model.{part}" for part in parts)
            hint = did_you_mean(path, names)
            raise ConfigError(f"{path}: neither {nobody} has such a field{hint}")
    return {part: changed(part) for part in parts}


class Composite(Seq2SeqModel):
    """An encoder model, and a decoder model with cross-attention to its outputs.

    References: Rothe et al., 2019, for text encoders and decoders that were trained separately
        (https://arxiv.org/abs/1907.12461); Li et al., 2021, for images
        (https://arxiv.org/abs/2109.10282).
    """

    def __init__(self, key: jax.Array, config: CompositeConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 3)
        self.encoder = config.encoder.build(keys[0])
        self.decoder = config.decoder.build(keys[1])
        widths = config.encoder.output_width, config.decoder.encoder_width
        axes = {"vocab_embed": widths[0]}, {"embed": widths[1]}
        std = normal(config.decoder.init_std)
        self.projection = Linear(keys[2], *axes, std, bias=True) if config.projects else None
        self.source = config.encoder.required[0]
        self.dtype = config.decoder.dtype

    @property
    def heads(self) -> nnx.Dict:
        """The decoder's heads, by name."""
        return self.decoder.heads

    @property
    def target_embedding(self) -> Embedding:
        """The decoder's token embedding."""
        return self.decoder.embedding

    @property
    def decoder_transformer(self) -> Transformer:
        return self.decoder.transformer

    def cross_inputs(self, encoder_outputs):
        return encoder_outputs if self.projection is None else self.projection(encoder_outputs)

    def encode(self, inputs: jax.Array, **options: Any) -> jax.Array:
        """Returns the encoder outputs, in the width of the encoder.

        Args:
            inputs: int token ids `[B, S]`, images `[B, height, width, C]`, spectrograms `[B,
                frames, M]`, or waveforms `[B, samples]`.
            **options: Options of the encoder's `hidden`, such as `segments` and `key`.

        Returns:
            `[B, S, D]` in the compute dtype.
        """
        with scope("encoder"):
            return self.encoder.hidden(inputs, **options)

    def decode(self, inputs: jax.Array, encoder_outputs: jax.Array, **options: Any) -> jax.Array:
        """Returns the decoder's hidden states with teacher forcing.

        Args:
            inputs: int `[B, T]`: the start token, then all targets but the last.
            encoder_outputs: `[B, S, D]`, from `encode`.
            **options: Options of the decoder's `hidden`, such as `encoder_mask` and `segments`.

        Returns:
            `[B, T, D]` in the compute dtype.
        """
        encoder_outputs = self.cross_inputs(encoder_outputs)
        with scope("decoder"):
            return self.decoder.hidden(inputs, encoder_outputs=encoder_outputs, **options)

    def _encoded(self, batch, key):
        with scope("encoder"):
            return self.encoder.outputs(batch, key).hidden, self.encoder.valid(batch)
