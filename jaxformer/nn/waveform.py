"""From waveforms to frames: strided convolutions, positions, masked spans, and an adapter."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import RATE, at_least, between, check_field, check_fields, check_types
from jaxformer.functional.arrays import assert_axes, assert_bool, whole_rows
from jaxformer.functional.audio.convolution import (
    channel_norm,
    grouped_convolution,
    num_windows,
    weight_norm,
    windows,
)
from jaxformer.functional.feedforward import ActivationName, activation
from jaxformer.functional.norms import LayerNorm
from jaxformer.nn.config import SIZE
from jaxformer.nn.layers import Linear, NormLayer, constant, normal, parameter

_EPS = 1e-5
"""Added to the variance by the norms of convolutions, regardless of that of the blocks."""


@dataclass(frozen=True)
class ConvolutionalFeatures:
    """Convolutions without padding, each with an activation, from samples to frames.

    References:
        Baevski et al., wav2vec 2.0 (https://arxiv.org/abs/2006.11477), section 4.2.
    """

    channels: tuple[int, ...] = (512, 512, 512, 512, 512, 512, 512)
    """The output channels of each convolution."""
    kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    """The taps of each convolution."""
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    """The stride of each convolution."""
    bias: bool = False
    """Whether the convolutions have a bias."""
    norm: Literal["first", "each"] = "first"
    """"first": the first convolution is followed by a norm of each channel over time (base models);
    "each": every convolution by a layer norm (large models)."""
    activation: ActivationName = "gelu"
    """The nonlinearity."""

    def __post_init__(self):
        check_types(self)
        count = len(self.channels)
        check_field(self, "channels", count >= 1, "at least one convolution")
        for name in ("channels", "kernels", "strides"):
            sizes = getattr(self, name)
            check_field(self, name, all(map(SIZE.allows, sizes)), "positive numbers")
            same = len(sizes) == count
            check_field(self, name, same, f"{count} numbers, as many as channels has")

    def num_frames(self, samples: int | jax.Array) -> int | jax.Array:
        """Returns the number of frames of a waveform, 0 or less for one that is too short."""
        for size, stride in zip(self.kernels, self.strides, strict=True):
            samples = num_windows(samples, size, stride)
        return samples

    def valid_frames(self, length: int, num_samples: jax.Array) -> jax.Array:
        """Which of `length` frames read only the first `num_samples` `[B]`, bool `[B, T]`."""
        return jnp.arange(length)[None, :] < self.num_frames(num_samples)[:, None]

    @property
    def min_samples(self) -> int:
        """The number of samples that a frame reads."""
        samples = 1
        for size, stride in zip(self.kernels[::-1], self.strides[::-1], strict=True):
            samples = (samples - 1) * stride + size
        return samples

    @property
    def samples_per_frame(self) -> int:
        """The number of samples from one frame to the next."""
        return math.prod(self.strides)

    @property
    def products(self) -> int:
        """Multiply-adds for each frame."""
        inputs = (1, *self.channels[:-1])
        total, rate = 0, self.samples_per_frame
        sizes = zip(inputs, self.channels, self.kernels, self.strides, strict=True)
        for narrow, wide, size, stride in sizes:
            rate //= stride
            total += rate * size * narrow * wide
        return total


@dataclass(frozen=True)
class PositionalConvolution:
    """A grouped convolution of the frames, whose activation is added to them as their positions.

    References:
        Baevski et al., wav2vec 2.0 (https://arxiv.org/abs/2006.11477), section 2;
        Mohamed et al., 2019 (https://arxiv.org/abs/1904.11660).
    """

    kernel_size: int = 128
    """Frames that the kernel spans."""
    groups: int = 16
    """Groups of channels, a divisor of model_dim."""
    activation: ActivationName = "gelu"
    """The nonlinearity."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, "position_convolution", kernel_size=SIZE, groups=SIZE)


@dataclass(frozen=True)
class SpanMasking:
    """Spans of frames that a learned vector replaces in training, and spans of zeroed channels.

    References:
        Park et al., SpecAugment (https://arxiv.org/abs/1904.08779), as wav2vec 2.0 applies it.
    """

    time_probability: float = 0.05
    """The share of frames that would be masked if spans did not overlap; 0: none."""
    time_span: int = 10
    """Frames of a span."""
    min_time_spans: int = 2
    """The minimum number of spans of frames in a row."""
    channel_probability: float = 0.0
    """The share of channels that would be zeroed if spans did not overlap; 0: none."""
    channel_span: int = 10
    """Channels of a span."""
    min_channel_spans: int = 0
    """The minimum number of spans of channels in a row."""
    enabled: bool = True
    """Whether anything is masked; the parameters do not depend on it."""

    def __post_init__(self):
        check_types(self)
        rates = {"time_probability": RATE, "channel_probability": RATE}
        fewest = dict.fromkeys(("min_time_spans", "min_channel_spans"), at_least(0))
        check_fields(self, "span_masking", time_span=SIZE, channel_span=SIZE, **rates, **fewest)

    @property
    def has_vector(self) -> bool:
        """Whether the model has a vector for masked frames."""
        return self.time_probability > 0 or self.channel_probability > 0


@dataclass(frozen=True)
class LengthAdapter:
    r"""Gated strided convolutions after the blocks, which shorten rows for a head or decoder.

    .. math:: y_t = (W_1 x_{t s - 1 \ldots t s + P - 2} + b_1)
              \odot \sigma(W_2 x_{t s - 1 \ldots t s + P - 2} + b_2)

    for each layer, with a zero before and after the row.

    References:
        Li et al., Multilingual Speech Translation with Efficient Finetuning of Pretrained Models
        (https://arxiv.org/abs/2010.12829), section 2.2.
    """

    num_layers: int = 3
    """Convolutions."""
    kernel_size: int = 3
    """The taps of each (P), at most 3: one frame before and one after."""
    stride: int = 2
    """The factor by which each shortens a row (s)."""
    width: int | None = None
    """The width of the frames, to which a linear layer and a norm map others; None: model_dim."""

    def __post_init__(self):
        check_types(self)
        sizes = {"num_layers": SIZE, "kernel_size": between(1, 3), "stride": SIZE}
        width = {} if self.width is None else {"width": SIZE}
        check_fields(self, "adapter", **sizes, **width)

    @property
    def shortening(self) -> int:
        """The factor by which all layers together shorten a row."""
        return self.stride**self.num_layers

    def output_width(self, dim: int) -> int:
        """Returns the width of the frames after states of width `dim`."""
        return dim if self.width is None else self.width

    def num_frames(self, frames: int | jax.Array) -> int | jax.Array:
        """Returns the number of frames for this number of states."""
        for _ in range(self.num_layers):
            frames = self._length(frames)
        return frames

    def valid_frames(self, valid: jax.Array) -> jax.Array:
        """Returns which frames have a real state in their middle, from those states `[B, T]`."""
        for _ in range(self.num_layers):
            valid = self.shortened(valid)
        return valid

    def shortened(self, valid: jax.Array) -> jax.Array:
        """Returns `valid_frames` of one layer."""
        assert_axes(valid=(valid, "B T"))
        assert_bool(valid=valid)
        kept = valid[:, :: self.stride]
        return jnp.pad(kept, ((0, 0), (0, self._length(valid.shape[1]) - kept.shape[1])))

    def _length(self, frames: int | jax.Array) -> int | jax.Array:
        return num_windows(frames + 2, self.kernel_size, self.stride)

    def products(self, dim: int) -> int:
        """Multiply-adds for each state of width `dim`."""
        width = self.output_width(dim)
        each = self.kernel_size * width * 2 * width
        total = sum(each // self.stride ** (layer + 1) for layer in range(self.num_layers))
        return total + (0 if width == dim else dim * width)


class ChannelNorm(nnx.Module):
    """`channel_norm` with its parameters."""

    def __init__(self, key: jax.Array, channels: int):
        """Declares scale and bias."""
        self.scale = parameter(key, (channels,), ("norm",), constant(1.0))
        self.bias = parameter(key, (channels,), ("norm",), constant(0.0))

    def __call__(self, x: jax.Array, valid: jax.Array | None) -> jax.Array:
        """`[B, T, C] -> [B, T, C]`; the statistics are those of the positions in `valid`."""
        return channel_norm(x, self.scale[...], self.bias[...], valid, eps=_EPS)


class FeatureEncoder(nnx.Module):
    """`ConvolutionalFeatures` with its parameters."""

    def __init__(self, key: jax.Array, config: ConvolutionalFeatures):
        """Declares a kernel for each convolution, and the norms."""
        self.config = config
        inputs = (1, *config.channels[:-1])
        keys = jax.random.split(key, len(inputs))
        sizes = zip(keys, inputs, config.channels, config.kernels, strict=True)
        self.convolutions = nnx.List(
            [
                Linear(
                    key,
                    {"taps": size, "channels": narrow},
                    {"features": wide},
                    normal((2 / (size * narrow)) ** 0.5),
                    bias=config.bias,
                )
                for key, narrow, wide, size in sizes
            ]
        )
        first = config.norm == "first"
        self.channel_norm = ChannelNorm(keys[0], config.channels[0]) if first else None
        widths = () if first else config.channels
        self.norms = nnx.List([NormLayer(keys[0], LayerNorm(_EPS), width) for width in widths])

    def __call__(
        self,
        waveforms: jax.Array,
        dtype: jnp.dtype,
        num_samples: jax.Array | None = None,
    ) -> jax.Array:
        """Computes the frames `[B, T, C]` of waveforms `[B, S]` in a dtype."""
        # A norm over time reads the first `num_samples` `[B]` of each row; None: all.
        assert_axes(waveforms=(waveforms, "B S"))
        x, f = waveforms[..., None].astype(dtype), activation(self.config.activation)
        sizes = zip(self.convolutions, self.config.kernels, self.config.strides, strict=True)
        for place, (convolution, size, stride) in enumerate(sizes):
            x = convolution(windows(x, size, stride))
            if place == 0 and self.channel_norm is not None:
                valid = None
                if num_samples is not None:
                    count = num_windows(num_samples, size, stride)
                    valid = jnp.arange(x.shape[1])[None, :] < count[:, None]
                x = self.channel_norm(x, valid)
            elif self.channel_norm is None:
                x = self.norms[place](x)
            x = f(x)
        return x


class FramePositions(nnx.Module):
    """`PositionalConvolution` with its parameters, under a weight norm."""

    def __init__(self, key: jax.Array, config: PositionalConvolution, dim: int):
        """Declares the kernel's direction `[P, D / G, D]` and length `[P]`, and the bias `[D]`."""
        size, groups = config.kernel_size, config.groups
        axes = ("taps", "channels", "features")
        std = normal(2 / (size * dim) ** 0.5)
        self.direction = parameter(key, (size, dim // groups, dim), axes, std)
        length = jnp.sqrt(jnp.sum(jnp.square(self.direction[...]), axis=(1, 2)))
        self.magnitude = parameter(key, (size,), ("taps",), lambda *_: length)
        self.bias = parameter(key, (dim,), ("norm",), constant(0.0))
        self.config = config

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[B, T, D] -> [B, T, D]`, the addition to the frames."""
        kernel = weight_norm(self.direction[...], self.magnitude[...])
        y = grouped_convolution(x, kernel, groups=self.config.groups)
        wide = y.astype(jnp.promote_types(y.dtype, jnp.float32)) + self.bias[...][None, None]
        return activation(self.config.activation)(wide.astype(x.dtype))


class FrameAdapter(nnx.Module):
    """`LengthAdapter` with its parameters."""

    def __init__(self, key: jax.Array, config: LengthAdapter, dim: int, std: float):
        """Declares a projection and its norm if the width differs, and the convolutions."""
        keys = jax.random.split(key, config.num_layers + 2)
        width, size = config.output_width(dim), config.kernel_size
        same = width == dim
        axes = {"embed": dim}, {"features": width}
        self.projection = None if same else Linear(keys[0], *axes, normal(std), bias=True)
        self.norm = None if same else NormLayer(keys[1], LayerNorm(_EPS), width)
        taps, gated = {"taps": size, "channels": width}, {"features": 2 * width}
        initial = normal((2 / (size * width)) ** 0.5)
        self.convolutions = nnx.List(
            [Linear(key, taps, gated, initial, bias=True) for key in keys[2:]]
        )
        self.config = config

    def __call__(self, x: jax.Array, real: jax.Array | None = None) -> jax.Array:
        """`[B, T, D] -> [B, num_frames(T), width]`, reading states that are not `real` as zeros."""
        x = whole_rows(x)
        if self.projection is not None:
            x = self.norm(self.projection(x))
        for convolution in self.convolutions:
            if real is not None:
                x = jnp.where(real[..., None], x, jnp.zeros((), x.dtype))
                real = self.config.shortened(real)
            x = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
            x = jax.nn.glu(convolution(windows(x, self.config.kernel_size, self.config.stride)))
        return x
