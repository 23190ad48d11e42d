"""A decoder that reconstructs an image from the encoder states of visible patches."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxformer.checks import check_fields
from jaxformer.functional.activations import scope
from jaxformer.functional.arrays import place, spec_of, whole_rows
from jaxformer.functional.masks import Mask
from jaxformer.models.flops import block_products
from jaxformer.models.heads.base import Head, HeadModule, Unit, array
from jaxformer.models.heads.patches import masked_loss, target_pixels
from jaxformer.nn import Linear
from jaxformer.nn.config import SIZE
from jaxformer.nn.layers import normal, parameter

_ALMOST_NONE = 1e-6


@dataclass(frozen=True)
class MaskedAutoencoder(Head):
    r"""Reconstructs masked patches with a second decoder (MAE).

    .. math:: \ell = \frac{1}{|M|} \sum_{i \in M} \frac{1}{n} \lVert x_i - y_i \rVert^2

    over the masked patches M, each with n values. The inputs of the decoder are the states of
    visible patches at their positions and a learned mask token elsewhere. Reads "masked", bool `[B,
    patches]`, and the images themselves.

    References:
        He et al., Masked Autoencoders, 2021 (https://arxiv.org/abs/2111.06377).
    """

    name: ClassVar[str] = "reconstruction"
    unit: ClassVar[Unit] = "patch"
    num_layers: int = 8
    """Blocks of the decoder."""
    model_dim: int = 512
    """Width of its residual stream."""
    num_heads: int = 16
    """Its query heads."""
    mlp_dim: int = 2048
    """Hidden width of its feed-forward layers."""
    normalize: bool = False
    """Whether the target pixels of each patch are normalized to mean 0 and variance 1."""

    def __post_init__(self):
        super().__post_init__()
        sizes = ("num_layers", "model_dim", "num_heads", "mlp_dim")
        check_fields(self, **dict.fromkeys(sizes, SIZE))

    def decoder(self, config: Any) -> Any:
        """Returns the configuration of the decoder, like the encoder's except for its sizes.

        Args:
            config: The configuration of the encoder, a `VisionConfig`.
        """
        own = ("num_layers", "model_dim", "num_heads", "mlp_dim")
        sizes = {name: getattr(self, name) for name in own}
        return replace(config, **sizes, head_dim=None, value_dim=None, mask_ratio=None, heads=())

    def products(self, config):
        decoder, (rows, columns) = self.decoder(config), config.patch_size
        ends = config.output_width + rows * columns * config.channels
        blocks = block_products(decoder, decoder.sublayers, self.num_layers)
        return blocks + ends * self.model_dim

    def build(self, key, config):
        return MaskedAutoencoderHead(key, config, self)

    def reads(self, rows, length):
        return {"masked": array(rows, length, dtype=jnp.bool_)}


class MaskedAutoencoderHead(HeadModule):
    """`MaskedAutoencoder` with its parameters."""

    weights = "masked"

    def __init__(self, key: jax.Array, config: Any, head: MaskedAutoencoder):
        """Declares the decoder, and linear layers before and after it."""
        keys = jax.random.split(key, 4)
        std = normal(config.init_std)
        decoder, width = head.decoder(config), head.model_dim
        self.embed = Linear(
            keys[0], {"embed": config.output_width}, {"pooled": width}, std, bias=True
        )
        self.mask_token = parameter(keys[1], (width,), ("embed",), std)
        self.transformer = decoder.build_transformer(keys[2], width)
        rows, columns = config.patch_size
        pixels = {"patch_rows": rows, "patch_columns": columns, "channels": config.channels}
        self.output = Linear(keys[3], {"embed": width}, pixels, std, bias=True)
        self.prefix = config.num_prefix
        self.num_patches = config.num_patches
        self.patch_size = config.patch_size
        self.normalize = head.normalize

    def scores(self, outputs, key=None):
        """Returns the pixels of each patch, `[B, patches, P, Q, C]`, float32."""
        x = self.embed(outputs.hidden)
        first, rest = x[:, : self.prefix], x[:, self.prefix :]
        if outputs.places is not None:
            rest = self._in_place(rest, outputs.places)
        x = jnp.concatenate([first, rest], axis=1)
        with scope("decoder"):
            x = whole_rows(self.transformer(x, mask=Mask(), key=key))
        return self.output(x[:, self.prefix :]).astype(jnp.float32)

    def _in_place(self, x: jax.Array, places: jax.Array) -> jax.Array:
        """Returns states `[B, K, D]` scattered to places int `[B, K]`, mask tokens elsewhere."""
        token = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
        states = jnp.concatenate([x, place(token, spec_of(x))], axis=1)
        numbers = jnp.arange(self.num_patches)[None, None, :]
        read = places[:, :, None] == numbers
        which = jnp.where(jnp.any(read, axis=1), jnp.argmax(read, axis=1), x.shape[1])
        return jnp.take_along_axis(states, which[..., None], axis=1)

    def errors(self, scores: jax.Array, images: jax.Array) -> jax.Array:
        """Returns the mean squared error of each patch, float32 `[B, patches]`."""
        pixels = target_pixels(images, self.patch_size)
        if self.normalize:
            axes = (2, 3, 4)
            mean = jnp.mean(pixels, axis=axes, keepdims=True)
            variance = jnp.var(pixels, axis=axes, keepdims=True, ddof=1)
            pixels = (pixels - mean) / jnp.sqrt(variance + _ALMOST_NONE)
        return jnp.mean(jnp.square(scores - pixels), axis=(2, 3, 4))

    def loss(self, outputs, batch, options, key):
        errors = self.errors(self.scores(outputs, key), batch["images"])
        return masked_loss(self, errors, batch)
