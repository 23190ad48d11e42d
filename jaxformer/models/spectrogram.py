"""Encoders over spectrograms (Whisper)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.checks import check_field, check_fields
from jaxformer.functional.arrays import assert_axes, assert_floating
from jaxformer.functional.audio.convolution import windows
from jaxformer.functional.feedforward import gelu
from jaxformer.functional.masks import Mask
from jaxformer.functional.norms import LayerNorm, Norm
from jaxformer.functional.positions.base import Position
from jaxformer.functional.positions.fixed_table import SinusoidalTable
from jaxformer.models.flops import TokenFlops, attention_flops, block_products
from jaxformer.models.heads.base import Head, ModelOutput, array, build_heads, pool
from jaxformer.models.model import Model, TransformerModelConfig, check_no_windows
from jaxformer.models.states import with_layers
from jaxformer.nn import MLP, DotProductAttention, FeedForwardConfig, Linear, SelfAttentionConfig
from jaxformer.nn.config import SIZE
from jaxformer.nn.layers import normal

_TAPS = 3
_STRIDES = (1, 2)
"""The strides of the two convolutions."""


@dataclass(frozen=True)
class SpectrogramConfig(TransformerModelConfig):
    """Configuration of an encoder over spectrograms (Whisper)."""

    required: ClassVar[tuple[str, ...]] = ("spectrograms",)
    input_fields: ClassVar[tuple[str, ...]] = ("num_mel_bins", "position")
    num_mel_bins: int = 80
    """Frequencies of a spectrogram."""
    position: Position = SinusoidalTable(max_length=1500)
    """The scheme of the states, one for every two frames of the spectrogram. A `max_length` fixes
    the number of frames of all spectrograms.
    """
    norm: Norm = LayerNorm(eps=1e-5)
    """LayerNorm or RMSNorm."""
    self_attention: SelfAttentionConfig = DotProductAttention(
        bias=True, key_bias=False, output_bias=True
    )
    """DotProductAttention or another token-mixing sublayer."""
    feed_forward: FeedForwardConfig = MLP(activation="gelu", gated=False, bias=True)
    """The position-wise sublayer: MLP or a user-defined one."""
    depth_scaled_init: bool = False
    """Whether projections into the residual stream have smaller initial weights (GPT-2)."""
    heads: tuple[Head, ...] = ()
    """The heads on the hidden states; none if a decoder reads them."""

    def __post_init__(self):
        super().__post_init__()
        check_no_windows(self)
        check_fields(self, "model", num_mel_bins=SIZE)
        limited = self.position.max_length is not None
        check_field(self, "position", limited, "a scheme with a max_length", "model")

    @property
    def num_frames(self) -> int:
        """The frames of a spectrogram."""
        return self.num_tokens * _STRIDES[0] * _STRIDES[1]

    @property
    def num_tokens(self) -> int:
        """T, the states of a spectrogram."""
        return self.position.max_length

    def build(self, key):
        return Spectrogram(key, self)

    def head_length(self, head, lengths):
        return self.num_tokens

    def input_spec(self, rows, lengths):
        return {"spectrograms": array(rows, self.num_frames, self.num_mel_bins, dtype=jnp.float32)}

    def row_lengths(self, lengths):
        """Returns the number of states."""
        return {"inputs": self.num_tokens}

    def flops(self, lengths):
        blocks, dim = (self, self.sublayers, self.num_layers), self.model_dim
        products = _TAPS * dim * (_STRIDES[1] * self.num_mel_bins + dim)
        products += block_products(*blocks) + sum(head.products(self) for head in self.heads)
        return TokenFlops(2 * products, *attention_flops(*blocks, self.num_tokens, causal=False))


class Spectrogram(Model):
    """Two convolutions of a spectrogram, and encoder blocks.

    References:
        Radford et al., Whisper (https://arxiv.org/abs/2212.04356), section 2.2.
    """

    def __init__(self, key: jax.Array, config: SpectrogramConfig):
        """Declares all parameters, float32."""
        keys = jax.random.split(key, 4)
        dim, std = config.model_dim, normal(config.init_std)
        self.convolutions = nnx.List(
            [
                Linear(own, {"taps": _TAPS, "channels": width}, {"embed": dim}, std, bias=True)
                for own, width in zip(keys[:2], (config.num_mel_bins, dim), strict=True)
            ]
        )
        self.transformer = config.build_transformer(keys[2], dim)
        self.heads = build_heads(keys[3], config, config.heads)
        self.config = config

    def hidden(self, spectrograms: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns the hidden states.

        Args:
            spectrograms: float `[B, frames, M]`, log-mel spectrograms as `functional.log_mel` gives
                them, with `num_frames` frames.
            key: The dropout key; None in evaluation.

        Returns:
            `[B, T, D]` in the compute dtype, with T = frames / 2.
        """
        frames, bins = self.config.num_frames, self.config.num_mel_bins
        assert_axes(spectrograms=(spectrograms, f"B {frames} {bins}"))
        assert_floating(spectrograms=spectrograms)
        x = spectrograms.astype(self.config.dtype)
        for convolution, stride in zip(self.convolutions, _STRIDES, strict=True):
            padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
            x = gelu(convolution(windows(padded, _TAPS, stride)))
        return self.transformer(x, mask=Mask(), key=key)

    def outputs_of(self, spectrograms: jax.Array, key: jax.Array | None = None) -> ModelOutput:
        """Returns the inputs of the heads, see `hidden`."""
        hidden, layers = with_layers(self.hidden, self.config.heads, spectrograms, key)
        if layers is not None:
            # The last of them is normalised, as in transformers.
            layers = jnp.stack([*layers[:-1], hidden])
        return ModelOutput(hidden, pool(hidden, None, "first"), layers=layers)

    def outputs(self, batch, key=None):
        return self.outputs_of(batch["spectrograms"], key)

    def valid(self, batch):
        """Returns None: silence counts as sound."""
