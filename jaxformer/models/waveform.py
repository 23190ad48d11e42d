"""Encoders over waveforms (wav2vec 2.0, HuBERT)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxformer.checks import RATE, check_argument, check_field, check_fields
from jaxformer.errors import ConfigError
from jaxformer.functional.activations import tap
from jaxformer.functional.arrays import (
    assert_axes,
    assert_bool,
    assert_floating,
    assert_integers,
    place,
    spec_of,
)
from jaxformer.functional.audio import span_mask
from jaxformer.functional.dropout import dropout, split
from jaxformer.functional.masks import KeyPadding, Mask
from jaxformer.functional.norms import LayerNorm, Norm
from jaxformer.functional.positions.base import NoPosition, Position
from jaxformer.models.flops import TokenFlops, attention_flops, block_products
from jaxformer.models.heads.base import Head, ModelOutput, array, build_heads, pool
from jaxformer.models.heads.transcript import CTC
from jaxformer.models.model import Model, TransformerModelConfig, check_no_windows
from jaxformer.models.states import with_layers
from jaxformer.nn import (
    MLP,
    DotProductAttention,
    Embeddings,
    FeedForwardConfig,
    Linear,
    PostNorm,
    Residual,
    SelfAttentionConfig,
)
from jaxformer.nn.layers import normal, optional_norm, parameter
from jaxformer.nn.waveform import (
    ConvolutionalFeatures,
    FeatureEncoder,
    FrameAdapter,
    FramePositions,
    LengthAdapter,
    PositionalConvolution,
    SpanMasking,
)


@dataclass(frozen=True)
class WaveformConfig(TransformerModelConfig):
    """Configuration of an encoder over waveforms (wav2vec 2.0, HuBERT)."""

    required: ClassVar[tuple[str, ...]] = ("waveforms",)
    input_fields: ClassVar[tuple[str, ...]] = ("features",)
    features: ConvolutionalFeatures = ConvolutionalFeatures()
    """The convolutions from samples to frames."""
    feature_norm: bool = True
    """Whether the model's norm follows them."""
    feature_dropout: float = 0.0
    """Dropout of the frames before the blocks."""
    position_convolution: PositionalConvolution = PositionalConvolution()
    """The convolution that gives frames their positions."""
    span_masking: SpanMasking = SpanMasking()
    """The masking of frames and channels in training."""
    position: Position = NoPosition()
    """A scheme in addition to the positional convolution."""
    norm: Norm = LayerNorm(eps=1e-5)
    """LayerNorm or RMSNorm."""
    residual: Residual = PostNorm()
    """PostNorm (base models), or PreNorm (large models: "stable layer norm")."""
    embeddings: Embeddings = Embeddings(norm=LayerNorm(eps=1e-5))
    """Norm, scale and dropout of the frames; the norm, in base models, follows the positional
    convolution.
    """
    self_attention: SelfAttentionConfig = DotProductAttention(
        bias=True, output_bias=True, dropout=0.1
    )
    """DotProductAttention or another token-mixing sublayer."""
    feed_forward: FeedForwardConfig = MLP(activation="gelu", gated=False, bias=True)
    """The position-wise sublayer: MLP or a user-defined one."""
    depth_scaled_init: bool = False
    """Whether projections into the residual stream have smaller initial weights (GPT-2)."""
    dropout: float = 0.1
    """Dropout rate of the embeddings and of every sublayer's output."""
    adapter: LengthAdapter | None = None
    """Convolutions that shorten the rows after the blocks, for a transcript or a decoder."""
    heads: tuple[Head, ...] = (CTC(vocab_size=32),)
    """The heads on the hidden states; with an adapter only CTC."""

    def __post_init__(self):
        super().__post_init__()
        check_no_windows(self)
        check_fields(self, "model", feature_dropout=RATE)
        groups = self.position_convolution.groups
        divides = self.model_dim % groups == 0
        wanted = f"divisible by position_convolution.groups = {groups}"
        check_field(self, "model_dim", divides, wanted)
        reads = self.adapter is None or all(isinstance(head, CTC) for head in self.heads)
        wanted = "CTC heads or none, since model.adapter (add_adapter in config.json) shortens rows"
        check_field(self, "heads", reads, wanted, "model")

    @property
    def output_width(self):
        dim = self.model_dim
        return dim if self.adapter is None else self.adapter.output_width(dim)

    @property
    def samples_per_frame(self) -> int:
        """The number of samples from one frame of the outputs to the next."""
        own = self.features.samples_per_frame
        return own if self.adapter is None else own * self.adapter.shortening

    def num_frames(self, samples: int | jax.Array) -> int | jax.Array:
        """Returns the number of frames of the outputs of a waveform."""
        return self.output_length(self.features.num_frames(samples))

    def output_length(self, length: int | jax.Array) -> int | jax.Array:
        """Returns the number of frames after the adapter, which may shorten rows."""
        return length if self.adapter is None else self.adapter.num_frames(length)

    def output_valid(self, valid: jax.Array | None) -> jax.Array | None:
        """Returns the valid frames of the outputs, from those of `features`; None: all."""
        return valid if valid is None or self.adapter is None else self.adapter.valid_frames(valid)

    def build(self, key):
        return Waveform(key, self)

    def head_length(self, head, lengths):
        if head.unit == "frame":
            return self.features.num_frames(lengths["inputs"])
        return lengths.get("targets", 0)

    def batch_lengths(self, batch):
        """Returns the samples, and the labels of transcripts if there are some."""
        labels = {"targets": batch["transcript"].shape[1]} if "transcript" in batch else {}
        return {"inputs": batch["waveforms"].shape[1]} | labels

    def input_spec(self, rows, lengths):
        return {
            "waveforms": array(rows, lengths["inputs"], dtype=jnp.float32),
            "num_samples": array(rows),
        }

    def row_lengths(self, lengths):
        """Returns the number of frames."""
        return {"inputs": self.features.num_frames(lengths["inputs"])}

    def check_lengths(self, lengths):
        """Raises ConfigError if rows have no frame."""
        if lengths["inputs"] < 1:
            raise ConfigError(
                "rows have no frame: must have at least the "
                f"{self.features.min_samples} samples that model.features reads; set longer ones"
            )

    def flops(self, lengths):
        blocks = self, self.sublayers, self.num_layers
        own, dim = self.position_convolution, self.model_dim
        products = self.features.products + self.features.channels[-1] * dim
        products += own.kernel_size * dim * dim // own.groups
        products += block_products(*blocks)
        heads, share = sum(head.products(self) for head in self.heads), 1
        if self.adapter is not None:
            products += self.adapter.products(dim)
            share = self.adapter.shortening
        products += heads // share
        return TokenFlops(2 * products, *attention_flops(*blocks, lengths["inputs"], causal=False))


class Waveform(Model):
    """Convolutions from samples to frames, a positional convolution, and encoder blocks.

    References:
        Baevski et al., wav2vec 2.0 (https://arxiv.org/abs/2006.11477);
        Hsu et al., HuBERT (https://arxiv.org/abs/2106.07447).
    """

    def __init__(self, key: jax.Array, config: WaveformConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 7)
        width, dim, std = config.features.channels[-1], config.model_dim, normal(config.init_std)
        self.feature_encoder = FeatureEncoder(keys[0], config.features)
        self.feature_norm = optional_norm(
            keys[1], config.norm if config.feature_norm else None, width
        )
        axes = {"features": width}, {"embed": dim}
        self.projection = Linear(keys[2], *axes, std, bias=True)
        masked = config.span_masking.has_vector
        uniform = lambda key, shape: jax.random.uniform(key, shape, jnp.float32)  # noqa: E731
        self.mask_vector = parameter(keys[3], (dim,), ("embed",), uniform) if masked else None
        self.frame_positions = FramePositions(keys[4], config.position_convolution, dim)
        # Without the adapter, the outputs have the width of the blocks.
        self.transformer = replace(config, adapter=None).build_transformer(keys[5], dim)
        own, key = config.adapter, jax.random.fold_in(key, 1)
        self.adapter = None if own is None else FrameAdapter(key, own, dim, config.init_std)
        self.heads = build_heads(keys[6], config, config.heads)
        self.config = config

    def features(self, waveforms: jax.Array, num_samples: jax.Array | None = None) -> jax.Array:
        """Returns the normalised output of the convolutions.

        Args:
            waveforms: float `[B, S]`.
            num_samples: int `[B]`: the samples of each row over which a norm over time is taken, so
                that padding does not change the real frames; None: all, as in transformers.

        Returns:
            `[B, T, C]` in the compute dtype.
        """
        sizes = assert_axes(waveforms=(waveforms, "B S"))
        assert_floating(waveforms=waveforms)
        if num_samples is not None:
            assert_axes(sizes, num_samples=(num_samples, "B"))
            assert_integers(num_samples=num_samples)
        features = self.feature_encoder(waveforms, self.config.dtype, num_samples)
        features = features if self.feature_norm is None else self.feature_norm(features)
        return tap("hook_features", features)

    def hidden(
        self,
        waveforms: jax.Array,
        valid: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the hidden states of waveforms: `states` of their `features`."""
        return self.states(self.features(waveforms), valid, key=key)

    def states(
        self,
        features: jax.Array,
        valid: jax.Array | None = None,
        masked: jax.Array | None = None,
        key: jax.Array | None = None,
        adapted: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the hidden states of frames, or the frames of the adapter after them.

        Args:
            features: `[B, T, C]`, from `features`.
            valid: bool `[B, T]`: the frames to attend to; None means all.
            masked: bool `[B, T]`: the frames to replace with the mask vector. None: spans drawn
                with the key; no spans in evaluation.
            key: The dropout key; None in evaluation.
            adapted: bool `[B, T]`: the states that the adapter reads, so that padding does not
                change the real frames; None: all, as in transformers.

        Returns:
            `[B, output_length(T), output_width]` in the compute dtype.
        """
        sizes = assert_axes(features=(features, "B T C"))
        given = {"valid": valid, "masked": masked, "adapted": adapted}
        for name, frames in given.items():
            if frames is not None:
                assert_axes(sizes, **{name: (frames, "B T")})
                assert_bool(**{name: frames})
        own_key, span_key, stack_key = split(key, 3)
        x = dropout(self.projection(features), self.config.feature_dropout, own_key)
        x = self._masked(x, valid, masked, span_key)
        if valid is not None:
            x = jnp.where(valid[..., None], x, jnp.zeros((), x.dtype))
        x = x + tap("hook_pos_embed", self.frame_positions(x))
        mask = Mask() if valid is None else KeyPadding(valid)
        x = self.transformer(x, mask=mask, key=stack_key)
        return x if self.adapter is None else tap("hook_adapter", self.adapter(x, adapted))

    def _masked(self, x, valid, masked, key):
        """Replaces masked frames, and zeroes masked channels."""
        own = self.config.span_masking
        if masked is not None:
            wanted = "None: the model has no vector for masked frames"
            check_argument("masked", masked, self.mask_vector is not None, wanted)
        if not own.enabled:
            return x
        time_key, channel_key = split(key, 2)
        if masked is None and time_key is not None and own.time_probability > 0:
            lengths = None if valid is None else jnp.sum(valid, axis=1, dtype=jnp.int32)
            masked = span_mask(
                time_key,
                x,
                lengths,
                probability=own.time_probability,
                span=min(own.time_span, x.shape[1]),
                min_spans=own.min_time_spans,
            )
        if masked is not None:
            vector = jnp.broadcast_to(self.mask_vector[...].astype(x.dtype), x.shape)
            x = jnp.where(masked[..., None], place(vector, spec_of(x)), x)
        if channel_key is not None and own.channel_probability > 0:
            channels = span_mask(
                channel_key,
                x[:, 0],
                probability=own.channel_probability,
                span=min(own.channel_span, x.shape[2]),
                min_spans=own.min_channel_spans,
            )
            x = jnp.where(channels[:, None], jnp.zeros((), x.dtype), x)
        return x

    def outputs_of(
        self,
        features: jax.Array,
        valid: jax.Array | None = None,
        masked: jax.Array | None = None,
        key: jax.Array | None = None,
        adapted: jax.Array | None = None,
    ) -> ModelOutput:
        """Returns the inputs of the heads, see `states`."""
        given = features, valid, masked, key, adapted
        hidden, layers = with_layers(self.states, self.config.heads, *given)
        layers = None if layers is None else jnp.stack(layers)
        valid = self.config.output_valid(valid)
        pooled = pool(hidden, valid, "first")
        return ModelOutput(hidden, pooled, valid=valid, features=features, layers=layers)

    def outputs(self, batch, key=None):
        num_samples = batch.get("num_samples")
        features = self.features(batch["waveforms"], num_samples)
        real = self._real(batch)
        return self.outputs_of(features, real, batch.get("masked"), key, real)

    def valid(self, batch):
        """Returns the frames of the outputs that are real, bool `[B, T]`; None: all."""
        return self.config.output_valid(self._real(batch))

    def _real(self, batch):
        """The frames that read only real samples, before the adapter; None: all."""
        if "num_samples" not in batch:
            return None
        length = self.config.features.num_frames(batch["waveforms"].shape[1])
        return self.config.features.valid_frames(length, batch["num_samples"])
